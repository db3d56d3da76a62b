// The way back to the version before: by the engine's own code, and because another process asks.

#include <fmt/core.h>

#include "fault_point.hpp"
#include "rollback_request.hpp"
#include "subscriber_impl.hpp"

namespace rollring::weights {

bool SubscriberImpl::is_asked_back() {
    if (!options_.rollback_when_asked) return false;
    const auto request = shown_request(session_->publisher());
    if (!request || request->number <= heard_) return false;
    heard_ = request->number;
    if (holding_.live_version() != request->version) {
        answer_request(session_->own(), request->number, RollbackOutcome::not_live, "");
        return false;
    }
    if (delta_->can_roll_back()) return true;
    answer_request(session_->own(), request->number, RollbackOutcome::refused, why_no_way_back());
    return false;
}

std::string SubscriberImpl::why_no_way_back() const {
    return fmt::format(
        "there is no version to go back to: {}; only the last version of an engine "
        "with Staging::delta can be rolled back, once, unless it did not fit into "
        "the list",
        holding_.text());
}

Result<void> SubscriberImpl::rollback() {
    if (update_.open) {
        return refused(Errc::busy, fmt::format("version {} is being taken in", update_.version));
    }
    const std::int64_t left = holding_.live_version();
    auto back = exchange_back();
    const auto request = shown_request(session_->publisher());
    if (options_.rollback_when_asked && request && request->version == left) {
        heard_ = request->number;
        answer_request(session_->own(), request->number,
                       back ? RollbackOutcome::rolled_back : RollbackOutcome::refused,
                       back ? std::string() : back.error().message);
    }
    return back;
}

Result<void> SubscriberImpl::exchange_back() {
    if (!delta_ || !delta_->can_roll_back()) {
        return refused(Errc::invalid_argument, why_no_way_back());
    }
    if (auto there = tensors_.check_memory(session_->mover()); !there) return there;
    const auto before = delta_->roll_back(holding_);
    if (!before) {
        holding_.give_up(before.error().message);
        store_release(session_->own().staged_version, std::int64_t{-1});
        session_->own().problem.store(before.error().message);
        session_->say(holding_.state());
        return std::unexpected(before.error());
    }
    holding_.go_back(*before);
    store_release(session_->own().live_version, *before);
    FAULT_POINT("weights.rolled_back");
    return {};
}

}  // namespace rollring::weights
