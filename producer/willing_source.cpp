#include "producer/willing_source.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace rollring::cli {
namespace {

constexpr std::size_t aside_max = 1 << 20;  // 16 bytes each

}  // namespace

// The record that was read last. False if it cannot be read again.
bool WillingSource::set_aside(GroupWanted wanted, std::string name) {
    const auto bookmark = source_->bookmark();
    if (!bookmark) return false;
    auto found = by_name_.find(name);
    if (found == by_name_.end()) {
        aside_.push_back({std::move(wanted), name, {}});
        found = by_name_.emplace(std::move(name), std::prev(aside_.end())).first;
    }
    found->second->records.push_back(*bookmark);
    count_++;
    return true;
}

Next WillingSource::next_of_open(Draft& draft) {
    const Bookmark bookmark = open_.front();
    open_.pop_front();
    count_--;
    return source_->again(bookmark, draft);
}

Next WillingSource::open_oldest(Draft& draft) {
    open_ = std::move(aside_.front().records);
    by_name_.erase(aside_.front().name);
    aside_.pop_front();
    return next_of_open(draft);
}

Next WillingSource::next(Draft& draft) {
    if (!open_.empty()) return next_of_open(draft);
    if (!aside_.empty() && may_send_(aside_.front().wanted)) return open_oldest(draft);
    while (!ended_ && count_ < aside_max) {
        const Next got = source_->next(draft);
        if (got == Next::end) {
            ended_ = true;
            break;
        }
        if (got != Next::record) return got;
        GroupWanted wanted = describe_(draft);
        std::string name = fmt::format("{}/{}", wanted.visit, wanted.instance_id);
        if (!by_name_.contains(name) && may_send_(wanted)) return Next::record;
        if (!set_aside(std::move(wanted), std::move(name))) return Next::record;
    }
    return aside_.empty() ? Next::end : open_oldest(draft);
}

}  // namespace rollring::cli
