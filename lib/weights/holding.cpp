#include "holding.hpp"

#include <fmt/format.h>

#include <utility>

namespace rollring::weights {

std::string Holding::text() const {
    if (is_mixed()) return "this subscriber is poisoned until it receives a complete version";
    if (live_version_ < 0) return "this subscriber holds no version yet";
    return fmt::format("this subscriber holds version {} complete", live_version_);
}

void Holding::give_up(std::string problem) {
    state_ = is_mixed() ? SubscriberState::poisoned : SubscriberState::ready;
    being_written_ = false;
    problem_ = std::move(problem);
}

void Holding::adopt(std::int64_t version) {
    live_version_ = version;
    state_ = SubscriberState::ready;
    being_written_ = false;
    problem_.clear();
}

}  // namespace rollring::weights
