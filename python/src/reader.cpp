#include "bindings.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "owned.hpp"
#include "rollring/batch.hpp"
#include "views.hpp"

namespace rollring::python {
namespace {

// Shared with its shares, which may live longer.
struct SharedReader : Owned<Reader> {
    SharedReader() : Owned("this reader") {}
    Gatherers gatherers;
};

// A share, and how to close it once no array shows it any more.
class SharedLoan final : public Lent {
  public:
    SharedLoan(std::shared_ptr<SharedReader> of, Share open)
        : shared(std::move(of)), share(std::move(open)) {}

    [[nodiscard]] bool leased() const override { return !inherited() && !later && share.leased(); }
    [[nodiscard]] const Schema& schema() const override { return shared->object->schema(); }
    [[nodiscard]] Gatherers& gatherers() override { return shared->gatherers; }

    std::shared_ptr<SharedReader> shared;
    Share share;
    bool later = false;

  protected:
    void check_shown() const override {
        if (inherited()) raise("forked", "this share belongs to the parent process");
        if (leased()) return;
        raise("not_leased", "the share was closed: its memory may hold another record by now");
    }
    [[nodiscard]] const Sequences& all() const override { return share; }
    void on_free() override {
        if (later && !in_use()) static_cast<void>(share.close());
    }
};

class PyShare : public PyViews {
  public:
    explicit PyShare(std::shared_ptr<SharedLoan> loan) : PyViews(loan), loan_(std::move(loan)) {}

    [[nodiscard]] std::uint32_t rank() const { return loan_->share.rank(); }
    [[nodiscard]] std::uint32_t world() const { return loan_->share.world(); }
    nb::bytes indices() {
        static_cast<void>(loan_->shown());
        const auto all = loan_->share.indices();
        return copy_of(all.data(), all.size_bytes());
    }
    void check() { value_or_raise(loan_->share.check()); }
    // With `later`: as soon as the last array is gone. Idempotent.
    void close(bool later) {
        if (!leased()) return;
        if (!loan_->in_use()) return value_or_raise(loan_->share.close());
        if (!later) {
            raise("views_alive", "cannot close the share: " + loan_->use_text() +
                                     "; delete its references, copy it (array.copy()), or use "
                                     "close(later=True)");
        }
        loan_->later = true;
        value_or_raise(loan_->share.check());
    }

  private:
    std::shared_ptr<SharedLoan> loan_;
};

class PyReader {
  public:
    PyReader(const std::string& ring, const std::string& name, double timeout) {
        reader_->hold(opened(deadline_of(timeout), {Errc::not_found, Errc::not_ready},
                             [&](std::chrono::nanoseconds patience) {
                                 return Reader::attach(ring,
                                                       {.name = name, .attach_timeout = patience});
                             }));
    }
    PyShare open(nb::bytes ticket) {
        return PyShare(std::make_shared<SharedLoan>(
            reader_, value_or_raise(reader_->in_turn([&](Reader& reader) {
                return reader.open({ticket.c_str(), ticket.size()});
            }))));
    }
    // Open shares stay open.
    void close() { reader_ = std::make_shared<SharedReader>(); }

  private:
    std::shared_ptr<SharedReader> reader_ = std::make_shared<SharedReader>();
};

}  // namespace

void bind_reader(nb::module_& module) {
    nb::class_<PyShare, PyViews>(module, "Share")
        .def_prop_ro("rank", &PyShare::rank)
        .def_prop_ro("world", &PyShare::world)
        .def("indices", &PyShare::indices)
        .def("check", &PyShare::check)
        .def("close", &PyShare::close);
    nb::class_<PyReader>(module, "Reader")
        .def(nb::init<const std::string&, const std::string&, double>())
        .def("open", &PyReader::open)
        .def("close", &PyReader::close);
}

}  // namespace rollring::python
