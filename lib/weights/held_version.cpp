// A version that stays in the publisher's slots until all ranks of the trainer have committed it.

#include <fmt/core.h>

#include <string>
#include <utility>

#include "subscriber_impl.hpp"

namespace rollring::weights {

std::optional<std::int64_t> SubscriberImpl::offered() const {
    const std::uint64_t reads = session_->reads();
    if (update_.open || reads <= update_.publication || session_->is_too_late(reads)) return {};
    const auto seen = session_->look_up(reads);
    if (!seen || seen->outcome == Outcome::aborted) return {};
    const bool begun = seen->put || seen->outcome == Outcome::committed ||
                       session_->is_filled(seen->first_part_number);
    return begun ? std::optional(seen->version) : std::nullopt;
}

void SubscriberImpl::pass() {
    if (!update_.open) update_.publication = session_->reads();
    update_.open = false;
    if (holding_.state() != SubscriberState::poisoned) set_state(SubscriberState::ready);
    session_->reading().leave(update_.publication);
    session_->ring_publisher();
}

void SubscriberImpl::unread() {
    if (!update_.open) return;
    update_.open = false;
    update_.publication--;
    if (holding_.state() != SubscriberState::poisoned) set_state(SubscriberState::ready);
}

Result<void> SubscriberImpl::hold_next(Deadline slice, Deadline deadline) {
    const std::uint32_t part = update_.parts_lent;
    auto lent = lend(part, slice, deadline);
    if (!lent) return std::unexpected(std::move(lent.error()));
    return remote_ ? remote_->fetch(part, update_.lent_slots.back().memory, {}) : Result<void>();
}

Result<void> SubscriberImpl::hold(Deadline slice, Deadline deadline) {
    while (update_.parts_lent < parts()) {
        if (auto held = hold_next(slice, deadline); !held) return held;
    }
    return {};
}

void SubscriberImpl::leave_part(Stream stream, device::Mover& by) {
    if (update_.lent_slots.empty()) return;
    const std::uint64_t number = update_.first_part_number + update_.parts_lent - 1;
    // After an error the device has failed, and reads nothing more.
    static_cast<void>(
        session_->reading().finish_part(number, update_.lent_slots.back().slot, stream, by));
}

Result<void> SubscriberImpl::wait_fetched(Deadline deadline) {
    return remote_ ? session_->mover().wait({}, deadline) : Result<void>();
}

void SubscriberImpl::leave_fetches() {
    if (remote_) leave_part({}, session_->mover());
}

Result<void> SubscriberImpl::check_counted() const {
    if (auto admitted = session_->check_admitted(); !admitted) return admitted;
    if (!session_->is_too_late(update_.publication)) return {};
    return refused(Errc::aborted,
                   fmt::format("version {} was decided without '{}', which came late: it gets a "
                               "version that is sent from now on; {}",
                               update_.version, options_.name, holding_.text()));
}

Result<void> SubscriberImpl::check_kept() const {
    if (auto counted = check_counted(); !counted) return counted;
    return session_->check_publisher();
}

Result<void> SubscriberImpl::check_was_kept() const {
    auto lives = session_->check_publisher();
    const bool closed = observe(session_->publisher().closed) != 0;
    // In this order: a publisher that closes expels those that still read before.
    if (auto counted = check_counted(); !counted) return counted;
    return closed ? Result<void>() : lives;
}

bool SubscriberImpl::is_in_ring() const {
    return link_.committed(update_.version, observe(session_->publisher().ranks_id));
}

Result<void> SubscriberImpl::take_held(Stream stream) {
    holding_.touch();
    while (update_.parts_done < update_.parts_lent) {
        const std::uint32_t part = update_.parts_done;
        if (tensors_.can_load(parts())) {
            const std::byte* const memory = update_.lent_slots.front().memory;
            auto copied =
                remote_ ? remote_->place(part, stream) : tensors_.load(part, memory, stream);
            if (!copied) return copied;
        }
        if (auto done = done_reading(part, stream); !done) return done;
    }
    return {};
}

void SubscriberImpl::abandon(std::string_view why) {
    if (update_.open) static_cast<void>(give_up({Errc::aborted, 0, std::string(why)}));
}

void SubscriberImpl::poison(const Error& why) {
    holding_.touch();
    static_cast<void>(give_up(why));
}

void SubscriberImpl::note_rollback(const Result<std::int64_t>& before) {
    if (before) {
        holding_.go_back(*before);
        store_release(session_->own().live_version, *before);
        return;
    }
    holding_.touch();
    holding_.give_up(before.error().message);
    store_release(session_->own().staged_version, std::int64_t{-1});
    session_->own().problem.store(before.error().message);
    session_->say(holding_.state());
}

}  // namespace rollring::weights
