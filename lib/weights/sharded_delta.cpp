// Staging by difference over the ranks of a sharded trainer: one list of the parts of all ranks,
// and the way back to the version before.

#include <fmt/core.h>

#include <iterator>
#include <utility>

#include "fault_point.hpp"
#include "rollback_request.hpp"
#include "sharded_engine.hpp"
#include "subscriber_tensors.hpp"

namespace rollring::weights {

// The parts of all ranks have one list, and one exchange: no element is in the views of two ranks.
Result<void> ShardedEngine::compile_delta(std::span<const std::vector<WeightTensor>> into,
                                          const SubscriberOptions& options) {
    device::Mover& mover = ends_.front()->session().mover();
    std::vector<std::vector<device::CopyJob>> parts;
    std::uint64_t bytes = 0;
    for (std::size_t rank = 0; rank < ends_.size(); rank++) {
        const Packing& packing = ends_[rank]->manifest().packing;
        auto own = compile_planned(packing, into[rank], mover);
        if (!own) return std::unexpected(own.error());
        std::ranges::move(*own, std::back_inserter(parts));
        bytes += ends_[rank]->target_bytes();
    }
    auto difference = mover.difference(std::move(parts));
    if (!difference) return std::unexpected(difference.error());
    delta_.emplace(std::move(*difference), options, bytes, true);
    return {};
}

// Before a version is begun: its slots may be those that a device still reads.
Result<void> ShardedEngine::wait_quiet(Deadline deadline) {
    for (const auto& end : ends_) {
        auto quiet =
            in_slices(*end, true, deadline, [&](Deadline slice) { return end->wait_quiet(slice); });
        if (!quiet) return quiet;
    }
    return {};
}

Result<void> ShardedEngine::list(SubscriberImpl& end, std::size_t first, Deadline deadline) {
    if (auto there = end.check_own_memory(); !there) return there;
    // A version that is committed comes from the slots alone.
    const bool all_live = outcome() != Outcome::committed;
    const auto take = [&](Deadline slice) -> Result<void> {
        const auto part = static_cast<std::uint32_t>(compared_);
        const std::byte* const slot = end.update().lent_slots.back().memory;
        const auto taken = delta_->take(part, {&slot, 1}, stream_, slice, holding_);
        if (taken) return {};
        // The slots of an aborted version may be filled again while they are compared.
        return std::unexpected(outcome() == Outcome::aborted ? aborted() : taken.error());
    };
    while (compared_ < first + end.parts()) {
        if (end.update().parts_lent == compared_ - first) {
            auto held = in_slices(end, all_live, deadline,
                                  [&](Deadline slice) { return end.hold_next(slice, deadline); });
            if (!held) return held;
        }
        if (auto taken = in_slices(end, all_live, deadline, take); !taken) return taken;
        compared_++;
    }
    return {};
}

void ShardedEngine::leave_slots() {
    for (const auto& end : ends_) end->leave_fetches();
    const auto stream = delta_ ? delta_->leave() : std::nullopt;
    if (!stream) return;
    std::size_t end_of_rank = 0;
    for (const auto& end : ends_) {
        end_of_rank += end->parts();
        if (compared_ < end_of_rank) {
            return end->leave_part(*stream, ends_.front()->session().mover());
        }
    }
}

// A list that is complete is exchanged once: nothing after it can fail, or be late.
Result<void> ShardedEngine::write(Deadline deadline) {
    holding_.touch();
    if (delta_) {
        if (auto swapped = delta_->swap_in(holding_); !swapped) return swapped;
        show_report();
        if (delta_->is_listed()) return {};
    }
    // Links first, because copies within the device would take all of it before.
    for (const bool over_link : {true, false}) {
        for (const auto& end : ends_) {
            if (end->is_over_link() != over_link) continue;
            if (auto taken = end->take_held(stream_); !taken) return taken;
        }
    }
    for (const auto& end : ends_) {
        if (auto quiet = end->wait_quiet(deadline); !quiet) return quiet;
        if (!is_direct() || has_all_of(*end)) continue;
        if (auto kept = end->check_was_kept(); !kept) return kept;
    }
    return {};
}

void ShardedEngine::show_report() {
    if (!delta_) return;
    for (const auto& end : ends_) show_delta(delta_->report(), end->session().own());
}

// --- the version before --------------------------------------------------------------------------

// Each rank shows a request of its own, one after another: those that come behind the rollback find
// the version left.
bool ShardedEngine::is_asked_back() {
    if (!takes_requests_) return false;
    bool asked = false;
    for (const auto& end : ends_) {
        const auto version = end->hear_request();
        if (!version) continue;
        if (*version != holding_.live_version()) {
            end->answer_heard(RollbackOutcome::not_live, "");
        } else if (delta_->can_roll_back()) {
            asked = true;
        } else {
            end->answer_heard(RollbackOutcome::refused, why_no_way_back(holding_));
        }
    }
    return asked;
}

Result<void> ShardedEngine::rollback() {
    if (update_.open) {
        return refused(Errc::busy, fmt::format("version {} is being taken in", update_.version));
    }
    const std::int64_t left = holding_.live_version();
    auto back = exchange_back();
    for (const auto& end : ends_) end->answer_rollback(left, back);
    return back;
}

Result<void> ShardedEngine::exchange_back() {
    if (!delta_ || !delta_->can_roll_back()) {
        return refused(Errc::invalid_argument, why_no_way_back(holding_));
    }
    for (const auto& end : ends_) {
        if (auto there = end->check_own_memory(); !there) return there;
    }
    const auto before = delta_->roll_back(holding_);
    for (const auto& end : ends_) end->note_rollback(before);
    if (!before) {
        holding_.give_up(before.error().message);
        return std::unexpected(before.error());
    }
    holding_.go_back(*before);
    FAULT_POINT("weights.rolled_back");
    return {};
}

}  // namespace rollring::weights
