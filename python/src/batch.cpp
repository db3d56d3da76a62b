#include "leased.hpp"

#include <optional>
#include <string>
#include <utility>

#include "views.hpp"

namespace rollring::python {
namespace {

SplitBy split_by(std::string_view asked) {
    for (const SplitBy by : {SplitBy::tokens, SplitBy::group_tokens, SplitBy::sequences,
                             SplitBy::groups, SplitBy::same}) {
        if (name(by) == asked) return by;
    }
    raise("invalid_argument", "a batch is not split by '" + std::string(asked) +
                                  "': use tokens, group_tokens, sequences, groups or same");
}

DropReason reason_by(std::string_view asked) {
    std::string known;
    for (int i = 0; i < static_cast<int>(DropReason::count); i++) {
        const auto reason = static_cast<DropReason>(i);
        if (name(reason) == asked) return reason;
        known += (i > 0 ? ", " : "") + std::string(name(reason));
    }
    raise("invalid_argument", "records are not dropped for the reason '" + std::string(asked) +
                                  "': use one of " + known);
}

class PyBatch : public PyViews {
  public:
    explicit PyBatch(std::shared_ptr<Leased> leased)
        : PyViews(leased), leased_(std::move(leased)) {}

    // No step: one more than the last. `timeout`: for readers of tickets.
    void ack(std::optional<std::int64_t> step, bool later, double timeout) {
        static_cast<void>(leased_->shown());
        enum class Did { acked, waits, put_off, refused };
        Result<void> acked;
        const Did did = leased_->shared->in_turn([&](Stash&) {
            leased_->step = step;
            if (!leased_->in_use()) {
                if (leased_->shared->has_ledger) return Did::waits;
                acked = leased_->ack(Deadline::now());
                return Did::acked;
            }
            if (!later) return Did::refused;
            leased_->later = leased_->ack_later = true;
            return Did::put_off;
        });
        if (did == Did::waits) acked = ack_on_disk();
        if (did == Did::acked || did == Did::waits) {
            const bool read = !acked && acked.error().code == Errc::busy;
            value_or_raise(read && timeout > 0 ? ack_when_read(timeout) : std::move(acked));
        }
        if (did != Did::refused) return;
        raise("views_alive", "cannot acknowledge the batch: " + leased_->use_text() +
                                 "; delete its references, copy it (array.copy()), or use "
                                 "ack(later=True)");
    }
    // The step of its acknowledgement; -1: it waits for one; None: there is none, or not yet.
    [[nodiscard]] std::optional<std::int64_t> acked_step() const {
        if (leased_->acked || leased_->inherited() || !leased_->batch->leased()) {
            return leased_->acked;
        }
        return leased_->ack_later ? std::optional<std::int64_t>(-1) : std::nullopt;
    }
    void discard(std::string_view reason) {
        const DropReason why = reason_by(reason);
        static_cast<void>(leased_->shown());
        const auto discarded = leased_->shared->in_turn([&](Stash&) {
            return leased_->in_use() ? std::nullopt : std::optional(leased_->batch->discard(why));
        });
        if (discarded) return value_or_raise(*discarded);
        raise("views_alive", "cannot discard the batch: " + leased_->use_text() +
                                 "; delete its references, or copy it (array.copy())");
    }
    // At once, or as soon as the last array is gone.
    void nack() {
        if (!leased()) return;
        leased_->shared->in_turn([&](Stash&) {
            if (leased_->in_use()) {
                leased_->later = true;
            } else {
                leased_->batch->nack();
            }
            return true;
        });
    }
    // Delayed until the GPUs have read the batch: call reads_done() then.
    void begin_reads(std::optional<std::int64_t> step) {
        leased_->begin_copy();
        try {
            ack(step, true, 0);
        } catch (...) {
            leased_->end_copy();
            throw;
        }
    }
    void reads_done(bool good) {
        if (!good) leased_->ack_later = false;
        leased_->end_copy();
    }
    nb::bytes receipt() {
        static_cast<void>(leased_->shown());
        const std::string made =
            leased_->shared->in_turn([&](Stash&) { return leased_->batch->receipt(); });
        return copy_of(made.data(), made.size());
    }
    nb::bytes ticket(std::uint32_t rank, std::uint32_t world, std::string_view split,
                     std::uint32_t tensor, std::uint32_t pipeline) {
        static_cast<void>(leased_->shown());
        const RankShare share{rank, world, split_by(split), tensor, pipeline};
        const std::string made = value_or_raise(
            leased_->shared->in_turn([&](Stash&) { return leased_->batch->ticket(share); }));
        return copy_of(made.data(), made.size());
    }
    double imbalance(std::uint32_t parts, std::string_view split) {
        return value_or_raise(rollring::split(leased_->shown(), split_by(split), parts))
            .imbalance();
    }

  private:
    // No other call may read the batch while it is acknowledged without the GIL.
    struct Hidden {
        explicit Hidden(Leased& batch) : leased(&batch) { batch.later = true; }
        Hidden(const Hidden&) = delete;
        Hidden& operator=(const Hidden&) = delete;
        ~Hidden() { leased->later = false; }
        Leased* leased;
    };
    // The disk of a ledger may take its time.
    Result<void> ack_on_disk() {
        const Hidden hidden(*leased_);
        return leased_->shared->in_waiting_turn(
            [&](Stash&) { return leased_->ack(Deadline::now()); });
    }
    // In slices, without the GIL.
    Result<void> ack_when_read(double timeout) {
        const Hidden hidden(*leased_);
        Result<void> acked;
        const bool waits = in_turns(
            leased_->shared->turns, deadline_of(timeout),
            [&](Deadline deadline) {
                if (leased_->shared->closing) return false;
                acked = leased_->ack(deadline);
                return !acked && acked.error().code == Errc::busy;
            },
            true);
        if (!waits && leased_->shared->closing) {
            raise("closed", "this stash was closed by another thread");
        }
        return acked;
    }

    std::shared_ptr<Leased> leased_;
};

}  // namespace

nb::object made_batch(std::shared_ptr<Leased> leased) {
    return nb::cast(PyBatch(std::move(leased)));
}

void bind_batch(nb::module_& module) {
    nb::class_<PyBatch, PyViews>(module, "Batch")
        .def("ack", &PyBatch::ack, nb::arg("step").none(), nb::arg("later"), nb::arg("timeout"))
        .def("acked_step", &PyBatch::acked_step)
        .def("discard", &PyBatch::discard)
        .def("nack", &PyBatch::nack)
        .def("begin_reads", &PyBatch::begin_reads, nb::arg("step").none())
        .def("reads_done", &PyBatch::reads_done)
        .def("receipt", &PyBatch::receipt)
        .def("ticket", &PyBatch::ticket)
        .def("imbalance", &PyBatch::imbalance);
}

}  // namespace rollring::python
