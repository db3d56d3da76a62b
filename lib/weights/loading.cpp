// A version's way from the slots into an engine's tensors, or into its list of differences.

#include <algorithm>
#include <utility>

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
    if (delta_ && !update_.listing) {
        auto started = delta_->start(update_.version, holding_, deadline);
        if (!started) return give_up_unless_late(std::move(started.error()));
        update_.listing = true;
    }
    // After timed_out it resumes where it was.
    bool is_lent = delta_ && delta_->comparing();
    for (std::uint32_t i = is_lent ? update_.parts_lent - 1 : update_.parts_lent; i < parts();
         i++) {
        if (!std::exchange(is_lent, false)) {
            if (auto lent = part(i, deadline); !lent) return std::unexpected(lent.error());
        }
        auto taken = take_part(i, stream, deadline);
        if (!taken) return give_up_unless_late(std::move(taken.error()));
        if (keeps_turn(i + 1)) continue;
        while (update_.parts_done <= i) {
            if (auto done = done_reading(update_.parts_done, stream); !done) return done;
        }
    }
    return {};
}

// Whether the parts that were compared stay lent until another one is, too: a slot that is free
// makes a GPU turn to the trainer's process, which fills it, and each turn costs time.
bool SubscriberImpl::keeps_turn(std::size_t next_part) const {
    return delta_ && options_.device.is_gpu() && !is_over_link() && next_part < parts() &&
           session_->is_filled(update_.first_part_number + next_part);
}

Result<void> SubscriberImpl::take_part(std::uint32_t part, Stream stream, Deadline deadline) {
    if (!delta_) return tensors_.load(part, update_.lent, stream);
    for (;;) {
        const Deadline piece{std::min(deadline.at_ns, Deadline::after_ms(50).at_ns)};
        const auto listed = delta_->take(part, update_.lent, stream, piece, holding_);
        if (listed) return *listed ? Result<void>() : tensors_.load(part, update_.lent, stream);
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

}  // namespace rollring::weights
