#include "deadlines.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace rollring {

// Inserts the group behind all older ones. After a restart groups open slightly out of order, so a
// short, bounded search back is enough.
void Deadlines::enter(std::uint32_t index) {
    constexpr int look_back = 256;
    Group& group = (*groups_)[index];
    group.due_ns = group.opened_ns + deadline_ns_;
    std::uint32_t before = by_age_.last();
    for (int i = 0; before != Group::none && (*groups_)[before].opened_ns > group.opened_ns; i++) {
        if (i == look_back) break;
        before = by_age_.previous(before);
    }
    by_age_.insert_behind(before, index);
    if (group.opened_ns < newest_ns_) return set(index, group.due_ns);
    newest_ns_ = group.opened_ns;
    if (next_ == Group::none) next_ = index;
}

void Deadlines::leave(std::uint32_t index) {
    if (next_ == index) next_ = by_age_.next(index);
    by_age_.erase(index);
}

void Deadlines::set(std::uint32_t index, std::int64_t due_ns) {
    (*groups_)[index].due_ns = due_ns;
    heap_.push_back({due_ns, index});
    std::ranges::push_heap(heap_, std::greater());
}

void Deadlines::note_opened(std::uint32_t index, std::int64_t opened_ns) {
    Group& group = (*groups_)[index];
    const std::int64_t before_ns = std::exchange(group.opened_ns, opened_ns);
    if (group.due_ns == before_ns + deadline_ns_) set(index, group.opened_ns + deadline_ns_);
}

std::size_t Deadlines::count_overdue() {
    std::size_t count = 0;
    for (auto index = by_age_.first(); index != Group::none; index = by_age_.next(index)) {
        const Group& group = (*groups_)[index];
        count += group.state == GroupState::open && group.expired ? 1 : 0;
    }
    any_overdue_ = count != 0;
    return count;
}

std::vector<std::uint32_t> Deadlines::oldest_open(std::size_t count) const {
    std::vector<std::uint32_t> found;
    for (auto index = by_age_.first(); index != Group::none && found.size() < count;
         index = by_age_.next(index)) {
        if ((*groups_)[index].state == GroupState::open) found.push_back(index);
    }
    return found;
}

std::uint32_t Deadlines::take_due(std::int64_t now_ns) {
    while (next_ != Group::none && (*groups_)[next_].opened_ns + deadline_ns_ <= now_ns) {
        const std::uint32_t index = std::exchange(next_, by_age_.next(next_));
        if (is_due(index, now_ns) && !(*groups_)[index].expired) return index;
    }
    while (!heap_.empty() && heap_.front().at_ns <= now_ns) {
        const Due due = heap_.front();
        std::ranges::pop_heap(heap_, std::greater());
        heap_.pop_back();
        if ((*groups_)[due.index].due_ns == due.at_ns && is_due(due.index, now_ns))
            return due.index;
    }
    return Group::none;
}

}  // namespace rollring
