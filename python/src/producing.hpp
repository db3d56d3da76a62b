#pragma once
// A producer and its drafts in Python: the thread that uses them.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"
#include "owned.hpp"
#include "rollring/producer.hpp"
#include "window.hpp"

namespace rollring::python {

// Shared with its drafts, whose windows may live longer.
struct SharedProducer : Owned<Producer> {
    Schema schema;                         // its ring's
    std::weak_ptr<Loan> draft;             // the last reserved one
    std::atomic<std::size_t> windows = 0;  // of all drafts; made with the lock

    SharedProducer() : Owned("this producer") {}

    // The windows of its drafts that Python still has. Requires the GIL.
    [[nodiscard]] std::string windows_text() const {
        const auto last = draft.lock();
        return last != nullptr && last->windows() > 0 ? last->windows_text()
                                                      : "an array over an earlier draft is";
    }
};

class Reserved final : public Loan {
  public:
    Reserved(std::shared_ptr<SharedProducer> of, std::string record)
        : Loan(&of->windows), shared(std::move(of)), who(std::move(record)) {}
    ~Reserved() override {
        if (inherited()) {
            static_cast<void>(room.release());
            return;
        }
        const Turn turn(shared->turns);
        room.reset();
    }
    [[nodiscard]] std::string name_of(std::uint16_t column, std::size_t) const override {
        return shared->schema.columns()[column].name + " of " + who;
    }

    std::shared_ptr<SharedProducer> shared;
    std::string who;  // for errors
    std::unique_ptr<Reservation> room = std::make_unique<Reservation>();
    bool over = false;  // committed or dropped
};

// Draft for rollring/_draft.py.
nb::object made_draft(std::shared_ptr<Reserved> reserved);
void bind_draft(nb::module_& module);

}  // namespace rollring::python
