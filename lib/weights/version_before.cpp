// The way back to the version before: by the engine's own code, and because another process asks.

#include <fmt/core.h>

#include "fault_point.hpp"
#include "rollback_request.hpp"
#include "subscriber_impl.hpp"

namespace rollring::weights {

std::optional<std::int64_t> SubscriberImpl::hear_request() {
    const auto request = shown_request(session_->publisher());
    if (!request || request->number <= heard_) return {};
    heard_ = request->number;
    return request->version;
}

void SubscriberImpl::answer_heard(RollbackOutcome outcome, std::string_view why) {
    if (heard_ > peek(session_->own().answered)) {
        answer_request(session_->own(), heard_, outcome, why);
    }
}

void SubscriberImpl::answer_rollback(std::int64_t version, const Result<void>& back) {
    const auto request = shown_request(session_->publisher());
    if (!options_.rollback_when_asked || !request || request->version != version) return;
    heard_ = request->number;
    answer_request(session_->own(), heard_,
                   back ? RollbackOutcome::rolled_back : RollbackOutcome::refused,
                   back ? std::string() : back.error().message);
}

bool SubscriberImpl::is_asked_back() {
    // A sharded engine asks its ends.
    if (!options_.rollback_when_asked || !delta_) return false;
    const auto version = hear_request();
    if (!version) return false;
    const bool serves = holding_.live_version() == *version;
    if (serves && delta_->can_roll_back()) return true;
    answer_heard(serves ? RollbackOutcome::refused : RollbackOutcome::not_live,
                 serves ? why_no_way_back(holding_) : std::string());
    return false;
}

std::string why_no_way_back(const Holding& holding) {
    return fmt::format(
        "there is no version to go back to: {}; only the last version of an engine "
        "with Staging::delta can be rolled back, once, unless it did not fit into "
        "the list",
        holding.text());
}

Result<void> SubscriberImpl::rollback() {
    if (update_.open) {
        return refused(Errc::busy, fmt::format("version {} is being taken in", update_.version));
    }
    const std::int64_t left = holding_.live_version();
    auto back = exchange_back();
    answer_rollback(left, back);
    return back;
}

Result<void> SubscriberImpl::exchange_back() {
    if (!delta_ || !delta_->can_roll_back()) {
        return refused(Errc::invalid_argument, why_no_way_back(holding_));
    }
    if (auto there = tensors_.check_memory(session_->mover()); !there) return there;
    const auto before = delta_->roll_back(holding_);
    note_rollback(before);
    if (!before) return std::unexpected(before.error());
    FAULT_POINT("weights.rolled_back");
    return {};
}

}  // namespace rollring::weights
