#include "bindings.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"
#include "fields.hpp"
#include "taking.hpp"
#include "turn.hpp"
#include "waiter.hpp"

namespace rollring::python {
namespace {

using Timeout = std::optional<double>;

class PyConsumer {
  public:
    // Waits for the ring but not for the seat, which its holder may keep.
    PyConsumer(const std::string& ring, double attach_timeout) {
        auto made = opened(deadline_of(attach_timeout), {Errc::not_ready}, [&](auto) {
            return Consumer::open(ring, {.attach_timeout = std::chrono::milliseconds(0)});
        });
        schema_ = std::make_shared<const Schema>(made.schema());
        shared_->hold(std::move(made));
    }

    // None: nothing arrived in time. A returned record is released and never delivered again.
    nb::object get(Timeout timeout) {
        shared_->check();
        std::optional<Copied> copied;
        const Poll answer = in_turns(
            shared_->turns, deadline_of(timeout),
            [&](Deadline deadline) {
                const Poll found = shared_->look(deadline);
                if (found == Poll::record) copied.emplace(shared_->take_record());
                return found;
            },
            Poll::timed_out);
        if (answer == Poll::closed) raise_closed();
        if (!copied) return nb::none();
        return nb::cast(Taken(std::move(*copied), schema_));
    }
    // For event loops: begin(), then get(0) once fd() is readable. A wait takes nothing, so a
    // cancelled one loses nothing.
    int fd() { return waiter_.fd(); }
    void begin(Timeout timeout) {
        shared_->check();
        fd();
        cancel();  // a wait that a closed loop has left
        while (waiter_.busy()) waiter_.finish();
        waiter_.begin(
            [shared = shared_](Deadline deadline) {
                return shared->turns.in_wait(
                    [&] { return shared->look(deadline) != Poll::timed_out; });
            },
            deadline_of(timeout));
    }
    void cancel() { waiter_.cancel(); }
    // Records that were not taken go to the next consumer. Idempotent.
    void close() {
        if (closed()) return;
        cancel();
        while (waiter_.busy()) waiter_.finish();
        static_cast<void>(shared_->take([] {}));
    }
    [[nodiscard]] bool closed() const { return shared_->gone(); }

  private:
    [[noreturn]] void raise_closed() {
        std::string problem = "this consumer was closed by another thread";
        {
            const Turn turn(shared_->turns);
            if (shared_->object) problem = shared_->object->problem();
        }
        raise("closed", problem);
    }

    std::shared_ptr<const Schema> schema_;
    std::shared_ptr<SharedConsumer> shared_ = std::make_shared<SharedConsumer>();
    LoopWaiter waiter_;
};

}  // namespace

void bind_consumer(nb::module_& module) {
    nb::class_<Taken>(module, "Taken")
        .def_prop_ro("memory", &Taken::memory)
        .def_prop_ro("user_is_text", &Taken::user_is_text)
        .def("fields", &Taken::fields)
        .def("columns", &Taken::columns);
    nb::class_<PyConsumer>(module, "Consumer")
        .def(nb::init<const std::string&, double>())
        .def("get", &PyConsumer::get, nb::arg("timeout").none())
        .def("fd", &PyConsumer::fd)
        .def("begin", &PyConsumer::begin, nb::arg("timeout").none())
        .def("cancel", &PyConsumer::cancel)
        .def("close", &PyConsumer::close)
        .def_prop_ro("closed", &PyConsumer::closed);
}

}  // namespace rollring::python
