#pragma once
// A stash and its batches in Python: the thread that uses them, and the moment when a lease can be
// returned.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lent.hpp"
#include "owned.hpp"
#include "rollring/stash.hpp"

namespace rollring::python {

class Leased;

// Shared with its batches, whose windows may live longer.
struct SharedStash : Owned<Stash> {
    std::vector<Leased*> leased;  // the batches that Python has
    Gatherers gatherers;
    bool has_ledger = false;  // so that calls may wait for a disk

    SharedStash() : Owned("this stash", &Stash::interrupt) {}
    // Requires the lock, while the stash is closing: closes it as soon as no window is left.
    void close_if_free();
};

// A batch, and how to return it once no array shows it any more.
class Leased final : public Lent {
  public:
    explicit Leased(std::shared_ptr<SharedStash> of) : shared(std::move(of)) {
        shared->leased.push_back(this);
    }
    ~Leased() override {
        if (inherited()) {
            static_cast<void>(batch.release());
            return;
        }
        const Turn turn(shared->turns);
        std::erase(shared->leased, this);
        give_back();
        batch.reset();
        if (shared->closing) shared->close_if_free();
    }
    [[nodiscard]] bool leased() const override { return !inherited() && !later && batch->leased(); }
    [[nodiscard]] const Schema& schema() const override { return shared->object->schema(); }
    [[nodiscard]] Gatherers& gatherers() override { return shared->gatherers; }
    // Both require the lock.
    Result<void> ack(Deadline readers) {
        const std::int64_t last = shared->object->last_acked_step();
        const std::int64_t now = step.value_or(last + 1);
        auto done = batch->ack(now, readers);
        if (done) acked = now;
        return done;
    }
    void give_back() {
        if (!batch->leased()) return;
        if (ack_later) {
            // Later batches may have been acknowledged meanwhile: steps must not decrease.
            const std::int64_t last = shared->object->last_acked_step();
            step = std::max(step.value_or(last + 1), last);
            if (ack(Deadline::after_ms(10'000))) return;
        }
        batch->nack();
    }
    std::shared_ptr<SharedStash> shared;
    std::unique_ptr<Batch> batch = std::make_unique<Batch>();
    bool later = false;                 // returned as soon as the last window is gone
    bool ack_later = false;             // as acknowledged
    std::optional<std::int64_t> step;   // none: one more than the last
    std::optional<std::int64_t> acked;  // the step, once it was acknowledged

  protected:
    void check_shown() const override {
        if (inherited()) {
            raise("forked", "this batch is leased to the parent process");
        }
        if (later || !batch->leased()) {
            raise("not_leased",
                  "the batch was acknowledged or given back, or its stash is closed: its memory "
                  "may hold another record by now");
        }
    }
    [[nodiscard]] const Sequences& all() const override { return *batch; }
    // The last window is gone, or the last copy is made.
    void on_free() override {
        if (!later || in_use()) return;
        const Turn turn(shared->turns);
        give_back();
        if (shared->closing) shared->close_if_free();
    }
};

inline void SharedStash::close_if_free() {
    if (std::ranges::none_of(leased, &Leased::in_use)) object.reset();
}

// Batch for rollring/_batch.py.
nb::object made_batch(std::shared_ptr<Leased> leased);
void bind_batch(nb::module_& module);

}  // namespace rollring::python
