// When groups are settled that are not complete. A list by age gives nearly all deadlines in order,
// for nothing; those that are not in its order are in a heap.

#include <algorithm>
#include <functional>
#include <utility>

#include "group_stash.hpp"

namespace rollring {

void GroupStash::tick(std::int64_t now_ns) {
    tombstones_.tick(now_ns);
    const auto is_due = [&](const Group& group) {
        return group.state == GroupState::open && group.due_ns <= now_ns;
    };
    while (next_due_ != Group::none &&
           groups_[next_due_].opened_ns + options_.deadline_ns <= now_ns) {
        const Slot slot = std::exchange(next_due_, groups_[next_due_].younger);
        if (is_due(groups_[slot]) && !groups_[slot].expired) expire(slot, now_ns);
    }
    while (!dues_.empty() && dues_.front().at_ns <= now_ns) {
        const Due due = dues_.front();
        std::ranges::pop_heap(dues_, std::greater());
        dues_.pop_back();
        if (groups_[due.slot].due_ns == due.at_ns && is_due(groups_[due.slot])) {
            expire(due.slot, now_ns);
        }
    }
}

void GroupStash::set_due(Slot slot, std::int64_t due_ns) {
    groups_[slot].due_ns = due_ns;
    dues_.push_back({due_ns, slot});
    std::ranges::push_heap(dues_, std::greater());
}

// A predecessor has had this group for longer than we knew.
void GroupStash::note_older(Slot slot, const Arrival& arrival) {
    Group& group = groups_[slot];
    const std::int64_t before_ns = group.opened_ns;
    group.opened_ns = std::max<std::int64_t>(*arrival.sent_ns, 0);
    if (group.due_ns == before_ns + options_.deadline_ns) {
        set_due(slot, group.opened_ns + options_.deadline_ns);
    }
}

void GroupStash::expire(Slot slot, std::int64_t now_ns) {
    Group& group = groups_[slot];
    touched_.push_back(slot);
    group.expired = true;
    // A predecessor may have released what settled the rest of its members: surplus, stale ones.
    const bool whole = group.live >= group.size;
    if (options_.at_deadline == AtDeadline::drop && !whole) {
        drop_group(slot, DropReason::deadline, now_ns);
    } else if (options_.at_deadline == AtDeadline::ship || whole) {
        if (group.live >= min_size(group)) {
            make_ready(slot, now_ns);
        } else {
            drop_group(slot, DropReason::too_few, now_ns);
        }
    } else {
        evaluate(slot, now_ns);
    }
}

}  // namespace rollring
