#include "producing.hpp"

#include <span>
#include <string>
#include <utility>

#include "given.hpp"

namespace rollring::python {
namespace {

class PyDraft {
  public:
    explicit PyDraft(std::shared_ptr<Reserved> reserved) : reserved_(std::move(reserved)) {}

    std::unique_ptr<Window> column(std::string_view name) {
        check();
        return reserved_->shared->in_turn([&](Producer& producer) -> std::unique_ptr<Window> {
            const auto index = producer.schema().find(name);
            const TrajectoryView view = reserved_->room->view();
            const ColumnView* found = index ? view.find(*index) : nullptr;
            if (found == nullptr) return nullptr;
            return std::make_unique<Window>(reserved_, *found, 0,
                                            reserved_->room->bytes(*index, found->dtype), true);
        });
    }

    void shrink(std::uint32_t tokens) {
        check();
        std::uint32_t most = 0;
        const bool fits = reserved_->shared->in_turn([&](Producer&) {
            most = reserved_->room->view().n_tokens();
            if (reserved_->windows() > 0 || tokens > most) return false;
            reserved_->room->shrink(tokens);
            return true;
        });
        if (fits) return;
        no_windows("shrink");
        raise("invalid_argument", "shrink to " + std::to_string(tokens) + " of " +
                                      std::to_string(most) + " reserved tokens");
    }

    void set(nb::dict given) {
        check();
        const RolloutOutcome outcome = outcome_of(std::move(given));
        std::uint32_t tokens = 0;
        const bool done = reserved_->shared->in_turn([&](Producer&) {
            tokens = reserved_->room->view().n_tokens();
            return reserved_->room->set(outcome);
        });
        if (done) return;
        if (outcome.n_prompt.value_or(0) <= tokens) gone();
        raise("bad_record", "n_prompt is " + std::to_string(*outcome.n_prompt) + " of " +
                                std::to_string(tokens) + " tokens");
    }

    void commit() {
        check();
        const Push push = reserved_->shared->in_turn([&](Producer&) {
            if (reserved_->windows() > 0) return Push::timed_out;
            return reserved_->room->commit();
        });
        no_windows("commit");
        if (push == Push::not_reserved) {
            gone();
        }
        if (push != Push::ok) raise("closed", "the producer of " + reserved_->who + " is closed");
        reserved_->over = true;
    }

    // The producer's next call takes its room.
    void abandon() { reserved_->over = true; }

    [[nodiscard]] bool over() const { return reserved_->over; }
    std::uint32_t tokens() {
        check();
        return reserved_->shared->in_turn(
            [&](Producer&) { return reserved_->room->view().n_tokens(); });
    }

  private:
    void check() const {
        reserved_->shared->turns.check("this draft");
        if (reserved_->over) raise("not_reserved", "this draft was committed or dropped before");
    }
    [[noreturn]] void gone() const {
        raise("not_reserved", "the room of " + reserved_->who +
                                  " is gone: a later call of its producer has taken it");
    }
    void no_windows(const char* what) const {
        if (reserved_->windows() == 0) return;
        raise("views_alive", std::string("cannot ") + what + ": " + reserved_->windows_text() +
                                 " still in use; delete its references first");
    }
    std::shared_ptr<Reserved> reserved_;
};

}  // namespace

nb::object made_draft(std::shared_ptr<Reserved> reserved) {
    return nb::cast(PyDraft(std::move(reserved)));
}

void bind_draft(nb::module_& module) {
    nb::class_<PyDraft>(module, "Draft")
        .def("column", &PyDraft::column)
        .def("shrink", &PyDraft::shrink)
        .def("set", &PyDraft::set)
        .def("commit", &PyDraft::commit)
        .def("abandon", &PyDraft::abandon)
        .def_prop_ro("over", &PyDraft::over)
        .def_prop_ro("tokens", &PyDraft::tokens);
}

}  // namespace rollring::python
