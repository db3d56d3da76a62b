#include "cli/commands/willing_source.hpp"

#include <fmt/core.h>

#include <iterator>
#include <utility>

namespace rollring::cli {
namespace {

constexpr std::size_t aside_max = 1 << 20;  // 16 bytes each
constexpr int looks_max = 32;               // at groups set aside; each is a question

}  // namespace

// Sets the last record aside. False if it cannot be read again.
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
    given_ = open_.records.front();
    open_.records.pop_front();
    count_--;
    return source_->again(*given_, draft);
}

bool WillingSource::put_back() {
    if (!given_) return false;
    open_.records.push_front(*given_);
    count_++;
    given_.reset();
    aside_.push_front(std::move(open_));
    open_.records.clear();
    by_name_.emplace(aside_.front().name, aside_.begin());
    return true;
}

Next WillingSource::take(std::list<Group>::iterator group, Draft& draft) {
    if (look_ == group) ++look_;
    by_name_.erase(group->name);
    open_ = std::move(*group);
    aside_.erase(group);
    return next_of_open(draft);
}

// A group that was set aside and may be sent now, by us or because others have opened it: the
// oldest one, or one of several that are asked about in turn.
std::list<WillingSource::Group>::iterator WillingSource::find_willing() {
    if (aside_.empty() || may_send_(aside_.front().wanted)) return aside_.begin();
    if (!ended_ && count_ < aside_max) return aside_.end();  // reading on may find a better one
    for (int looks = 0; looks < looks_max; looks++) {
        if (look_ == aside_.end()) look_ = aside_.begin();
        const auto group = look_++;
        if (may_send_(group->wanted)) return group;
    }
    return aside_.end();
}

Next WillingSource::next(Draft& draft) {
    if (!open_.records.empty()) return next_of_open(draft);
    given_.reset();
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
