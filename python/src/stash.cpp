#include "bindings.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fields.hpp"
#include "leased.hpp"
#include "nb.hpp"
#include "options.hpp"
#include "turn.hpp"
#include "waiter.hpp"

namespace rollring::python {
namespace {

using Timeout = std::optional<double>;

class PyStash {
  public:
    PyStash(const std::string& ring, nb::dict given, double attach_timeout) {
        const StashOptions options = stash_options(given);
        shared_->object =
            opened(deadline_of(attach_timeout), {Errc::not_found, Errc::not_ready, Errc::busy},
                   [&](std::chrono::nanoseconds patience) {
                       return Stash::open(ring, options, {.attach_timeout = patience});
                   });
        const auto stat = stat_ring(ring);
        shared_->has_ledger = options.advanced.ledger && stat && !stat->ledger_dir.empty();
    }

    // None: not enough was complete in time.
    nb::object next(Timeout timeout) {
        shared_->check();
        end_wait();  // the batch of a cancelled wait comes first
        if (auto batch = taken(); !batch.is_none()) return batch;
        auto leased = std::make_shared<Leased>(shared_);
        const NextBatch answer = in_turns(
            shared_->turns, deadline_of(timeout),
            [&](Deadline deadline) {
                if (shared_->closing) return NextBatch::closed;
                return shared_->object->next(*leased->batch, deadline);
            },
            NextBatch::timed_out);
        return answered(answer, std::move(leased));
    }
    // For event loops: begin(), then taken() once fd() is readable. A cancelled wait keeps its
    // batch for the next call of any kind.
    int fd() { return waiter_.fd(); }
    // False: a batch can be taken already. One wait at a time: an earlier one that is still under
    // way belongs to a closed loop, and ends first.
    bool begin(Timeout timeout) {
        shared_->check();
        fd();
        cancel();
        end_wait();
        if (waiting_ != nullptr && waiting_->answer != NextBatch::timed_out) return false;
        waiting_ = std::make_shared<Waiting>(std::make_shared<Leased>(shared_));
        const auto step = [waiting = waiting_.get()](Deadline deadline) {
            SharedStash& shared = *waiting->leased->shared;
            return shared.turns.in_wait([&] {
                waiting->answer = shared.closing
                                      ? NextBatch::closed
                                      : shared.object->next(*waiting->leased->batch, deadline);
                return waiting->answer != NextBatch::timed_out;
            });
        };
        cancelled_ = false;
        {  // ready records cost no other thread
            const Released released;
            if (step(Deadline::now())) return false;
        }
        waiter_.begin(step, deadline_of(timeout));
        return true;
    }
    void cancel() {
        cancelled_ = true;
        waiter_.cancel();
        if (waiter_.busy() && !closed()) shared_->object->interrupt();
    }
    nb::object taken() {
        if (waiting_ == nullptr || waiter_.busy()) return nb::none();
        const auto waiting = std::exchange(waiting_, nullptr);
        return answered(waiting->answer, waiting->leased);
    }
    nb::object rest() {
        end_wait();
        if (auto batch = taken(); !batch.is_none()) return batch;
        auto leased = std::make_shared<Leased>(shared_);
        const NextBatch answer =
            shared_->in_waiting_turn([&](Stash& stash) { return stash.rest(*leased->batch); });
        return answered(answer, std::move(leased));
    }
    std::uint64_t settle(nb::bytes receipt, std::int64_t step) {
        const std::string_view bytes(receipt.c_str(), receipt.size());
        return value_or_raise(
            shared_->in_waiting_turn([&](Stash& stash) { return stash.settle(bytes, step); }));
    }
    std::uint64_t checkpointed(std::int64_t step) {
        return value_or_raise(
            shared_->in_waiting_turn([&](Stash& stash) { return stash.checkpointed(step); }));
    }
    void sync_ledger(double timeout) {
        const auto done = shared_->in_waiting_turn(
            [&](Stash& stash) { return stash.sync_ledger(deadline_of(timeout)); });
        value_or_raise(Result<void>(done));
    }
    std::int64_t last_acked_step() {
        return shared_->in_turn([](Stash& stash) { return stash.last_acked_step(); });
    }
    std::int64_t policy_version() {
        return shared_->in_turn([](Stash& stash) { return stash.policy_version(); });
    }
    std::size_t open_groups() {
        return shared_->in_turn([](Stash& stash) { return stash.open_groups(); });
    }
    std::uint32_t producers() {
        return shared_->in_turn([](Stash& stash) { return stash.producers_active(); });
    }
    std::string waits_for() {
        return shared_->in_turn([](Stash& stash) { return stash.waits_for(); });
    }
    std::string dropped_since_batch() {
        return shared_->in_turn([](Stash& stash) { return stash.dropped_since_batch(); });
    }
    bool no_progress() {
        return shared_->in_turn([](Stash& stash) { return stash.no_progress(); });
    }
    // For a log: (events, totals) where there are events, or totals have changed, since the last
    // call; None: neither, as after most batches. Events come oldest first; `all`: also those that
    // are still being summed up. Totals: records dropped by reason, and the outcomes of groups.
    nb::object news(bool all) {
        std::vector<Event> happened;
        Totals totals{};
        const bool changed = shared_->in_turn([&](Stash& stash) {
            if (all) stash.tell_all();
            for (Event event; stash.next_event(event);) happened.push_back(event);
            totals = totals_of(stash);
            return std::exchange(told_, totals) != totals;
        });
        if (happened.empty() && !changed) return nb::none();
        nb::list made;
        for (const Event& event : happened) {
            nb::dict one;
            one["kind"] = text(name(event.kind));
            one["lane"] = event.lane;
            one["producer"] = text(event.producer);
            one["records"] = event.records;
            one["detail"] = text(event.detail);
            made.append(one);
        }
        nb::dict counts;
        for (std::size_t i = 0; i < totals.size(); i++) {
            counts[text(i < reasons ? name(static_cast<DropReason>(i)) : outcomes[i - reasons])] =
                totals[i];
        }
        return nb::make_tuple(made, counts);
    }
    // Leased records are delivered again to the ring's next stash. With `later`: as soon as the
    // last array is gone. Idempotent.
    void close(bool later) {
        if (closed()) return;
        cancel();
        end_wait();
        waiting_ = nullptr;
        std::string used;
        shared_->in_turn([&](Stash&) {
            for (const Leased* leased : shared_->leased) {
                if (leased->in_use() && !later) used = leased->use_text();
            }
            if (!used.empty()) return false;
            shared_->closing = true;
            for (Leased* leased : shared_->leased) {
                leased->later = true;
                if (!leased->in_use()) leased->give_back();
            }
            shared_->close_if_free();
            return true;
        });
        if (used.empty()) return;
        raise("views_alive", "cannot close the stash: " + used +
                                 "; delete its references, or use close(later=True)");
    }
    [[nodiscard]] bool closed() const { return shared_->gone(); }

  private:
    static constexpr auto reasons = static_cast<std::size_t>(DropReason::count);
    static constexpr std::array<std::string_view, 4> outcomes = {
        "groups_partial", "groups_dropped", "evacuated_records", "batches_short"};
    using Totals = std::array<std::uint64_t, reasons + outcomes.size()>;  // by these names
    static Totals totals_of(const Stash& stash) {
        const StashAccount account = stash.account();
        const StashCopies copies = stash.copies();
        Totals made{};
        for (std::size_t i = 0; i < reasons; i++) made[i] = account.dropped[i].records;
        const std::array<std::uint64_t, outcomes.size()> rest = {
            account.groups_partial, account.groups_dropped, copies.evacuated_records,
            copies.batches_short};
        std::ranges::copy(rest, made.begin() + reasons);
        return made;
    }
    // Ends a cancelled wait; a wait of a live event loop must go on.
    void end_wait() {
        while (waiter_.busy()) {
            if (!cancelled_) {
                raise("busy", "an event loop waits for this stash: await it, or cancel that task");
            }
            waiter_.finish();
        }
    }
    nb::object answered(NextBatch answer, std::shared_ptr<Leased> leased) {
        if (answer == NextBatch::batch) return made_batch(std::move(leased));
        if (answer == NextBatch::timed_out) return nb::none();
        if (shared_->closing) raise("closed", "this stash was closed by another thread");
        raise("closed", shared_->object->problem());
    }
    struct Waiting {
        std::shared_ptr<Leased> leased;
        NextBatch answer = NextBatch::timed_out;
    };
    std::shared_ptr<SharedStash> shared_ = std::make_shared<SharedStash>();
    std::shared_ptr<Waiting> waiting_;
    bool cancelled_ = false;
    Totals told_{};
    LoopWaiter waiter_;  // destroyed first: it writes into `waiting_`
};

}  // namespace

void bind_stash(nb::module_& module) {
    nb::class_<PyStash>(module, "Stash")
        .def(nb::init<const std::string&, nb::dict, double>())
        .def("next", &PyStash::next, nb::arg("timeout").none())
        .def("fd", &PyStash::fd)
        .def("begin", &PyStash::begin, nb::arg("timeout").none())
        .def("cancel", &PyStash::cancel)
        .def("taken", &PyStash::taken)
        .def("rest", &PyStash::rest)
        .def("settle", &PyStash::settle)
        .def("checkpointed", &PyStash::checkpointed)
        .def("sync_ledger", &PyStash::sync_ledger)
        .def("last_acked_step", &PyStash::last_acked_step)
        .def("policy_version", &PyStash::policy_version)
        .def("open_groups", &PyStash::open_groups)
        .def("producers", &PyStash::producers)
        .def("waits_for", &PyStash::waits_for)
        .def("dropped_since_batch", &PyStash::dropped_since_batch)
        .def("no_progress", &PyStash::no_progress)
        .def("news", &PyStash::news)
        .def("close", &PyStash::close)
        .def_prop_ro("closed", &PyStash::closed);
}

}  // namespace rollring::python
