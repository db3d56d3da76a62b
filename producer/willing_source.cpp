#include "producer/willing_source.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace rollring::cli {
namespace {

constexpr std::size_t aside_max = 1 << 20;  // 16 bytes each
constexpr int looks_max = 64;               // at groups that were set aside; each is a question

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

Next WillingSource::take(std::list<Group>::iterator group, Draft& draft) {
    open_ = std::move(group->records);
    by_name_.erase(group->name);
    aside_.erase(group);
    return next_of_open(draft);
}

// The oldest of those that were set aside and may be sent now, by us or because others opened them.
std::list<WillingSource::Group>::iterator WillingSource::find_willing() {
    auto group = aside_.begin();
    // While more can be read, that is a better place to look.
    const int most = ended_ || count_ >= aside_max ? looks_max : 1;
    for (int looks = 0; group != aside_.end() && looks < most; ++group, looks++) {
        if (may_send_(group->wanted)) return group;
    }
    return aside_.end();
}

Next WillingSource::next(Draft& draft) {
    if (!open_.empty()) return next_of_open(draft);
    if (const auto willing = find_willing(); willing != aside_.end()) return take(willing, draft);
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
    if (const auto willing = find_willing(); willing != aside_.end()) return take(willing, draft);
    return aside_.empty() ? Next::end : take(aside_.begin(), draft);
}

}  // namespace rollring::cli
