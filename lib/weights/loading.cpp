// A version's way from the slots into an engine's tensors, or into its list of differences.

#include <sched.h>

#include <algorithm>
#include <utility>

#include "gpu_turns.hpp"
#include "subscriber_impl.hpp"

namespace rollring::weights {

Result<void> SubscriberImpl::load(Deadline deadline, Stream stream) {
    if (!tensors_.can_load(parts())) {
        return refused(Errc::invalid_argument,
                       "load needs the engine's tensors: give them to attach");
    }
    if (auto there = tensors_.check_memory(session_->mover()); !there) {
        return give_up(std::move(there.error()));
    }
    return delta_ ? compare_parts(stream, deadline) : copy_parts(stream, deadline);
}

// Both resume after timed_out where they were.
Result<void> SubscriberImpl::copy_parts(Stream stream, Deadline deadline) {
    for (std::uint32_t i = update_.parts_lent; i < parts(); i++) {
        if (auto lent = part(i, deadline); !lent) return std::unexpected(lent.error());
        auto copied = tensors_.load(i, update_.lent_slots.back().memory, stream);
        if (!copied) return give_up(std::move(copied.error()));
        if (auto returned = return_lent(stream); !returned) return returned;
    }
    return {};
}

Result<void> SubscriberImpl::compare_parts(Stream stream, Deadline deadline) {
    if (!update_.listing) {
        auto started = delta_->start(update_.version, holding_, deadline);
        if (!started) return give_up_unless_late(std::move(started.error()));
        update_.listing = true;
    }
    while (update_.parts_done < parts()) {
        if (!delta_->comparing()) {
            if (auto lent = lend_turn(deadline); !lent) return lent;
        }
        auto taken = take_lent(stream, deadline);
        if (!taken) return give_up_unless_late(std::move(taken.error()));
        if (auto returned = return_lent(stream); !returned) return returned;
    }
    return {};
}

Result<void> SubscriberImpl::lend_turn(Deadline deadline) {
    while (update_.lent_slots.empty() || has_more_of_turn()) {
        auto lent = part(update_.parts_lent, deadline);
        if (!lent) return std::unexpected(std::move(lent.error()));
    }
    return {};
}

// Of a GPU that the engine shares with the trainer it compares all that could be filled in a turn.
bool SubscriberImpl::has_more_of_turn() const {
    if (!shares_gpu() || update_.parts_lent == parts()) return false;
    if (update_.lent_slots.size() >= manifest().slots) return false;
    const std::uint64_t number = update_.first_part_number + update_.parts_lent;
    const Deadline late = Deadline::after(turn_patience);
    while (!session_->is_filled(number)) {
        if (late.passed()) return false;
        sched_yield();
    }
    return true;
}

Result<void> SubscriberImpl::take_lent(Stream stream, Deadline deadline) {
    std::vector<const std::byte*> slots;
    slots.reserve(update_.lent_slots.size());
    for (const LentSlot& lent : update_.lent_slots) slots.push_back(lent.memory);
    for (;;) {
        const Deadline piece{std::min(deadline.at_ns, Deadline::after_ms(50).at_ns)};
        const auto listed = delta_->take(update_.parts_done, slots, stream, piece, holding_);
        if (listed) {
            for (std::uint32_t i = 0; !*listed && i < slots.size(); i++) {
                auto copied = tensors_.load(update_.parts_done + i, slots[i], stream);
                if (!copied) return copied;
            }
            return {};
        }
        if (listed.error().code != Errc::timed_out || deadline.passed()) {
            return std::unexpected(listed.error());
        }
        auto wanted = session_->look_around("its device to compare");
        const Outcome now = outcome();
        // A version that is committed comes from the slots alone.
        const bool last_words =
            !wanted && wanted.error().code == Errc::peer_gone && now == Outcome::committed;
        if (!wanted && !last_words) return wanted;
        if (now == Outcome::aborted) return std::unexpected(aborted());
    }
}

Result<void> SubscriberImpl::return_lent(Stream stream) {
    while (!update_.lent_slots.empty()) {
        auto done = done_reading(update_.parts_done, stream);
        if (!done) return done;
    }
    return {};
}

}  // namespace rollring::weights
