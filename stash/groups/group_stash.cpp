#include "group_stash.hpp"

#include <algorithm>
#include <utility>

#include "batch_cutter.hpp"
#include "rivals.hpp"

namespace rollring {

GroupStash::GroupStash(StashOptions options, std::uint64_t batch_records_max)
    : options_(std::move(options)),
      batch_records_max_(batch_records_max),
      tombstones_(options_.advanced.tombstone.count(), options_.advanced.tombstones),
      deadlines_(groups_, options_.due_after().count()),
      ready_(groups_),
      placement_(options_, book_),
      selection_(options_, book_),
      shares_(options_.advanced.source_weights) {
    const auto valid = validate(options_);
    ROLLRING_ASSERT(valid.has_value(), valid.error().message);
}

GroupStash::Index GroupStash::admit(const Arrival& arrival, std::int64_t now_ns,
                                    std::int64_t version) {
    const Amount amount{1, arrival.n_tokens};
    book_.account.accepted += amount;
    book_.account.held += amount;
    if (progress_ns_ == 0) progress_ns_ = now_ns;
    const Index found = find(arrival.key);
    if (found == no_group && tombstones_.holds(arrival.key)) {
        book_.drop(subsequence_of(arrival), DropReason::late);
        return no_group;
    }
    const Index index = found != no_group ? found : open_group(arrival, now_ns);
    Group& group = groups_[index];
    if (group.state == GroupState::leased) {
        book_.drop(subsequence_of(arrival), DropReason::late);
        return index;
    }
    if (arrival.sent_ns && *arrival.sent_ns < group.opened_ns) {
        deadlines_.note_opened(index, std::max<std::int64_t>(*arrival.sent_ns, 0));
    }
    touched_.push_back(index);
    if (arrival.group_size != 0 && arrival.group_size != group.size) {
        book_.account.size_conflicts++;
    }
    const Placed placed = placement_.place(group, arrival, version);
    shortage_.note_group(group.total.records);
    if (placed == Placed::retried && group.state == GroupState::ready) reopen(index, now_ns);
    if (placed != Placed::refused) evaluate(index, now_ns);
    return index;
}

// A retry of a member has arrived: the group is not ready after all.
void GroupStash::reopen(Index index, std::int64_t now_ns) {
    Group& group = groups_[index];
    ready_.erase(index);
    group.state = GroupState::open;
    // If its deadline passed while it was ready, the retry gets a deadline of its own.
    if (group.due_ns <= now_ns) deadlines_.set(index, now_ns + options_.due_after().count());
}

void GroupStash::evaluate(Index index, std::int64_t now_ns) {
    Group& group = groups_[index];
    if (group.state != GroupState::open) return;
    const bool bad = group.failed > 0 && options_.bad_reward == BadReward::void_group &&
                     std::ranges::find(group.members, RewardState::bad, &Member::rewarded) !=
                         group.members.end();
    if (bad || (group.failed > 0 && options_.on_failed == OnFailed::void_group)) {
        drop_group(index, DropReason::group_void, now_ns);
        return;
    }
    // Without spare members the group can only grow.
    if (options_.extra == 0 && drop_oversized(index, now_ns)) return;
    const std::uint64_t wanted = std::uint64_t{group.size} + options_.extra;
    const std::uint64_t final_count =
        group.complete + (options_.on_failed == OnFailed::shrink ? group.failed : 0);
    const bool enough = options_.advanced.select == Select::first && group.complete >= group.size;
    // Past its deadline a group no longer waits for spare members. It ships incomplete only if a
    // deadline was set.
    const bool late = group.expired && final_count >= group.size &&
                      (group.complete >= group.size || options_.deadline.has_value());
    if (!enough && final_count < wanted && !late) return;
    if (group.complete < min_size(group)) {
        drop_group(index, DropReason::too_few, now_ns);
        return;
    }
    make_ready(index, now_ns);
}

// A group that is too large for an acknowledgement is never leased: no batch with it could end.
bool GroupStash::drop_oversized(Index index, std::int64_t now_ns) {
    if (groups_[index].total.records <= batch_records_max_) return false;
    drop_group(index, DropReason::oversized, now_ns);
    return true;
}

std::uint32_t GroupStash::min_size(const Group& group) const {
    return std::min(options_.min_size, group.size);
}

// The group ships with the members that are complete now; the others are dropped.
void GroupStash::make_ready(Index index, std::int64_t now_ns) {
    Group& group = groups_[index];
    selection_.select(group);
    if (drop_oversized(index, now_ns)) return;
    if (selection_.drops_flat(group)) {
        drop_group(index, DropReason::zero_variance, now_ns);
        return;
    }
    group.state = GroupState::ready;
    shortage_.note_change();
    ready_.push_back(index);
}

void GroupStash::tick(std::int64_t now_ns) {
    tombstones_.tick(now_ns);
    for (Index due = Group::none; (due = deadlines_.take_due(now_ns)) != Group::none;) {
        expire(due, now_ns);
    }
}

void GroupStash::expire(Index index, std::int64_t now_ns) {
    Group& group = groups_[index];
    touched_.push_back(index);
    group.expired = true;
    deadlines_.note_overdue();
    shortage_.note_change();
    // A predecessor may already have released the records that made the other members final
    // (surplus or stale).
    const bool whole = group.complete >= group.size;
    const AtDeadline policy = options_.when_due();
    if (policy == AtDeadline::drop && !whole) {
        drop_group(index, DropReason::deadline, now_ns);
    } else if (policy == AtDeadline::ship || whole) {
        if (group.complete >= min_size(group)) {
            make_ready(index, now_ns);
            if (!whole && group.state == GroupState::ready) deadlines_.partial().push_back(index);
        } else {
            drop_group(index, DropReason::too_few, now_ns);
        }
    } else {
        evaluate(index, now_ns);
    }
}

void GroupStash::producer_gone(std::uint32_t lane, std::uint32_t epoch, std::int64_t now_ns) {
    for (Index index = deadlines_.by_age().first(); index != Group::none;) {
        Group& group = groups_[index];
        const Index next = deadlines_.by_age().next(index);
        bool changed = leave_to_rivals(group, lane, epoch, book_);
        for (Member& member : group.members) {
            if (group.state != GroupState::open || member.state != MemberState::open) continue;
            if (!member.is_from(lane, epoch)) continue;
            book_.drop_member(group, member, DropReason::unfinished);
            group.fail(member);
            member.left = true;
            changed = true;
        }
        if (changed) {
            touched_.push_back(index);
            evaluate(index, now_ns);
        }
        index = next;
    }
}

GroupStash::Index GroupStash::open_group(const Arrival& arrival, std::int64_t now_ns) {
    const Index index = groups_.take();
    Group& group = groups_[index];
    group.key = arrival.key;
    group.state = GroupState::open;
    group.expired = false;
    group.numbered = arrival.numbered;
    assumes_size_ |= arrival.group_size == 0;
    group.size = arrival.group_size != 0 ? arrival.group_size : options_.group_size;
    group.complete = group.failed = 0;
    group.rivals = 0;
    group.total = {};
    group.seen = group.final_members = group.lanes = 0;
    group.source_id = arrival.source_id;
    group.opened_ns =
        arrival.sent_ns ? std::clamp<std::int64_t>(*arrival.sent_ns, 0, now_ns) : now_ns;
    deadlines_.enter(index);
    lookup_.insert(group.key, index);
    book_.account.groups_opened++;
    return index;
}

void GroupStash::close_group(Index index, std::int64_t now_ns) {
    Group& group = groups_[index];
    if (group.state == GroupState::ready) ready_.erase(index);
    shortage_.note_change();
    tombstones_.add(group.key, now_ns);
    lookup_.erase(group.key, index);
    deadlines_.leave(index);
    group.state = GroupState::free;
    group.members.clear();  // now, while they are in cache
    touched_.push_back(index);
    groups_.give_back(index);
}

void GroupStash::drop_group(Index index, DropReason reason, std::int64_t now_ns) {
    Group& group = groups_[index];
    for (Member& member : group.members) {
        book_.drop_member(group, member,
                          member.state == MemberState::failed ? member.why_failed() : reason);
    }
    book_.account.groups_dropped++;
    close_group(index, now_ns);
}

// Checked again when a batch is cut. True if members, or the group with them, were dropped.
bool GroupStash::drop_stale(Index index, std::int64_t now_ns, std::int64_t version) {
    if (options_.max_lag < 0) return false;
    Group& group = groups_[index];
    bool dropped = false;
    for (Member& member : group.members) {
        if (member.state != MemberState::complete ||
            !is_stale(options_, member.version_min, version))
            continue;
        member.withheld = true;
        if (options_.stale == Stale::withhold) continue;
        book_.drop_member(group, member, DropReason::stale);
        group.fail(member);
        touched_.push_back(index);
        dropped = true;
    }
    if (dropped && group.complete < min_size(group)) drop_group(index, DropReason::too_few, now_ns);
    return dropped;
}

bool GroupStash::cut(std::int64_t now_ns, std::int64_t version, BatchPlan& batch) {
    return lease(now_ns, version, false, batch);
}

bool GroupStash::cut_rest(std::int64_t now_ns, std::int64_t version, BatchPlan& batch) {
    return lease(now_ns, version, true, batch);
}

bool GroupStash::lease(std::int64_t now_ns, std::int64_t version, bool partial, BatchPlan& batch) {
    if (ready_.size() == 0 || (!partial && !may_cut())) return false;
    for (;;) {
        BatchCutter cutter(
            {options_, groups_, deadlines_.by_age(), ready_, shares_, batch_records_max_}, partial);
        const std::vector<Index> chosen = cutter.choose();
        if (chosen.empty()) {
            shortage_.begin(cutter.found(), options_, batch_records_max_);
            return false;
        }
        // Members that have become stale are dropped, and the choice is repeated.
        bool changed = false;
        for (const Index index : chosen) changed |= drop_stale(index, now_ns, version);
        if (changed) continue;
        shortage_.end();
        batch.clear();
        batch.id = next_batch_++;
        for (const Index index : chosen) add_to_batch(index, batch);
        for (const auto& [source, tokens] : cutter.served()) shares_.serve(source, tokens);
        leased_.lease(batch.id, chosen);
        return true;
    }
}

void GroupStash::add_to_batch(Index index, BatchPlan& batch) {
    Group& group = groups_[index];
    shortage_.note_change();
    touched_.push_back(index);
    ready_.erase(index);
    group.state = GroupState::leased;
    book_.account.held -= group.total;
    book_.account.leased += group.total;
    batch.add(group);
}

// Counts the records that leave with a shipped group: the marks of its failed members.
void GroupStash::count_marks(const Group& group) {
    for (const Member& member : group.members) {
        if (member.state != MemberState::failed) continue;
        book_.account.dropped[static_cast<std::size_t>(member.why_failed())] +=
            member.subsequences.amount();
    }
}

void GroupStash::ack(std::uint64_t batch_id, std::int64_t now_ns, std::optional<DropReason> why) {
    StashAccount& account = book_.account;
    for (const Index index : leased_.end(batch_id)) {
        const Group& group = groups_[index];
        account.leased -= group.total;
        if (group.complete != group.members.size()) count_marks(group);
        if (why) {
            account.dropped[static_cast<std::size_t>(*why)] += group.complete_amount();
            account.groups_dropped++;
        } else {
            account.shipped += group.complete_amount();
            account.groups_shipped++;
            account.groups_partial += group.complete < group.size ? 1 : 0;
        }
        close_group(index, now_ns);
    }
    account.batches += why ? 0 : 1;
    progress_ns_ = now_ns;
}

void GroupStash::nack(std::uint64_t batch_id) {
    for (const Index index : leased_.end(batch_id)) {
        Group& group = groups_[index];
        book_.account.leased -= group.total;
        book_.account.held += group.total;
        group.state = GroupState::ready;
        shortage_.note_change();
        ready_.push_front(index);  // it was ready before all others
        touched_.push_back(index);
    }
}

bool GroupStash::no_progress(std::int64_t now_ns) const {
    return !lookup_.empty() && now_ns - progress_ns_ >= options_.advanced.no_progress.count();
}

}  // namespace rollring
