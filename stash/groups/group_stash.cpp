#include "group_stash.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rollring {
namespace {

bool is_failure(Status status) {
    return status != Status::completed && status != Status::truncated;
}

MemberSegment segment_of(const Arrival& arrival) {
    return {arrival.tag, arrival.n_tokens, arrival.segment_index};
}

// splitmix64: small, seeded, the same everywhere. Source: Steele, Lea, Flood 2014.
std::uint64_t next_random(std::uint64_t& state) {
    std::uint64_t word = state += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
}

}  // namespace

GroupStash::GroupStash(StashOptions options, std::uint64_t batch_records_max)
    : options_(std::move(options)),
      batch_records_max_(batch_records_max),
      tombstones_(options_.tombstone_ns, options_.tombstones),
      random_(options_.seed) {
    const auto valid = validate(options_);
    ROLLRING_ASSERT(valid.has_value(), valid.error().message);
}

GroupStash::Slot GroupStash::admit(const Arrival& arrival, std::int64_t now_ns,
                                   std::int64_t version, Slot hint) {
    const Amount amount{1, arrival.n_tokens};
    account_.accepted += amount;
    account_.held += amount;
    if (progress_ns_ == 0) progress_ns_ = now_ns;
    // Another may have the slot since the hint was given.
    const bool still = hint != no_slot && groups_[hint].key == arrival.key &&
                       groups_[hint].state != GroupState::free;
    const Slot found = still ? hint : find(arrival.key);
    if (found == no_slot && tombstones_.holds(arrival.key)) {
        drop(segment_of(arrival), DropReason::late);
        return no_slot;
    }
    const Slot slot = found != no_slot ? found : open_group(arrival, now_ns);
    Group& group = groups_[slot];
    if (group.state == GroupState::leased) {
        drop(segment_of(arrival), DropReason::late);
        return slot;
    }
    if (arrival.sent_ns && *arrival.sent_ns < group.opened_ns) note_older(slot, arrival);
    touched_.push_back(slot);
    if (arrival.group_size != 0 && arrival.group_size != group.size) account_.size_conflicts++;
    if (place(group, arrival, now_ns, version)) evaluate(slot, now_ns);
    return slot;
}

GroupStash::Slot GroupStash::prefetch_group(const GroupKey& key) const {
    const Slot slot = index_.likely(key);
    if (slot == no_slot) {
        tombstones_.prefetch(key);
        return slot;
    }
    prefetch_to_write(&groups_[slot].key);
    prefetch_to_write(&groups_[slot].total);  // in its other line
    return slot;
}

// Where the next member will be written.
void GroupStash::prefetch_member(Slot slot) const {
    if (slot == no_slot) return;
    const Group& group = groups_[slot];
    prefetch_to_write(group.members.data() + group.members.size());
}

// Puts the record where it belongs. False if it was dropped and nothing changed.
bool GroupStash::place(Group& group, const Arrival& arrival, std::int64_t now_ns,
                       std::int64_t version) {
    const auto refuse = [&](DropReason reason) {
        drop(segment_of(arrival), reason);
        return false;
    };
    Member* member = group.find(arrival.repetition_id);
    if (member == nullptr) {
        const bool full =
            group.members.size() - group.rivals >= std::size_t{group.size} + options_.extra;
        if (full || group.state == GroupState::ready) return refuse(DropReason::surplus);
        member = &group.add(arrival.repetition_id);
        member->attempt = arrival.attempt;
    } else if (arrival.attempt < member->attempt) {
        return refuse(DropReason::superseded);
    } else if (arrival.attempt > member->attempt) {
        member = &outlast(group, *member, DropReason::superseded);
        reset_member(group, *member, now_ns);
        member->attempt = arrival.attempt;
    } else if (member->left) {
        reset_member(group, *member, now_ns);
        member->attempt = arrival.attempt;
    } else if (member = &sender(group, *member, arrival);
               member->state != MemberState::open || member->segments.has(arrival.segment_index)) {
        const bool rest_of_bad = member->state == MemberState::failed &&
                                 member->rewarded == RewardState::bad &&
                                 !member->segments.has(arrival.segment_index);
        return refuse(rest_of_bad ? DropReason::bad_reward : DropReason::duplicate);
    }
    if (put(group, *member, arrival, version)) outlast(group, *member, DropReason::duplicate);
    return true;
}

// Adds the record to its member. True if that is final by it.
bool GroupStash::put(Group& group, Member& member, const Arrival& arrival, std::int64_t version) {
    member.lane = static_cast<std::uint16_t>(arrival.producer_lane);
    member.producer_epoch = arrival.producer_epoch;
    group.lanes |= Group::bit(arrival.producer_lane % 64);
    const bool stale = is_stale(arrival.policy_version_min, version);
    if (stale && options_.stale == Stale::drop) {
        drop_segments(group, member, DropReason::stale);
        drop(segment_of(arrival), DropReason::stale);
        fail_member(group, member);
        return true;
    }
    member.withheld |= stale;
    member.segments.add(segment_of(arrival));
    group.total += {1, arrival.n_tokens};
    if (arrival.policy_version_min >= 0 &&
        (member.version_min < 0 || arrival.policy_version_min < member.version_min)) {
        member.version_min = arrival.policy_version_min;
    }
    if (is_failure(arrival.status) || (arrival.reward && !take_reward(member, *arrival.reward))) {
        fail_member(group, member);
        return true;
    }
    if (arrival.last_segment) {
        member.last_index = arrival.segment_index;
        member.has_last = true;
    }
    if (!member.whole()) return false;
    member.state = MemberState::live;
    member.finished = finished_++;
    group.live++;
    group.settled |= Group::bit(member.repetition_id);
    return true;
}

// False if it is none, and the policy does not let the member live without.
bool GroupStash::take_reward(Member& member, double reward) {
    const bool good = std::isfinite(reward);
    account_.bad_rewards += good ? 0 : 1;
    if (member.rewarded == RewardState::bad) return true;  // another of its segments had none
    member.reward = reward;
    member.rewarded = good ? RewardState::there : RewardState::bad;
    return good || options_.bad_reward == BadReward::absent;
}

// A higher attempt replaces what there was.
void GroupStash::reset_member(Group& group, Member& member, std::int64_t now_ns) {
    drop_segments(group, member, DropReason::superseded);
    if (member.state == MemberState::live) group.live--;
    if (member.state == MemberState::failed) group.failed--;
    group.settled &= ~Group::bit(member.repetition_id);
    const std::uint32_t repetition_id = member.repetition_id;
    member = Member{};
    member.repetition_id = repetition_id;
    if (group.state != GroupState::ready) return;
    const Slot slot = find(group.key);
    unready(slot);
    group.state = GroupState::open;
    // Its deadline passed while it was ready: the retry gets one of its own.
    if (group.due_ns <= now_ns) set_due(slot, now_ns + options_.deadline_ns);
}

void GroupStash::fail_member(Group& group, Member& member) {
    if (member.state == MemberState::live) group.live--;
    if (member.state != MemberState::failed) group.failed++;
    member.state = MemberState::failed;
    group.settled |= Group::bit(member.repetition_id);
}

void GroupStash::evaluate(Slot slot, std::int64_t now_ns) {
    Group& group = groups_[slot];
    if (group.state != GroupState::open) return;
    const bool bad = group.failed > 0 && options_.bad_reward == BadReward::void_group &&
                     std::ranges::find(group.members, RewardState::bad, &Member::rewarded) !=
                         group.members.end();
    if (bad || (group.failed > 0 && options_.on_failed == OnFailed::void_group)) {
        drop_group(slot, DropReason::group_void, now_ns);
        return;
    }
    // Without members to spare it can only grow.
    if (options_.extra == 0 && drop_oversized(slot, now_ns)) return;
    const std::uint64_t wanted = std::uint64_t{group.size} + options_.extra;
    const std::uint64_t settled =
        group.live + (options_.on_failed == OnFailed::shrink ? group.failed : 0);
    const bool enough = options_.select == Select::first && group.live >= group.size;
    if (!enough && settled < wanted && !(group.expired && settled >= group.size)) return;
    if (group.live < min_size(group)) {
        drop_group(slot, DropReason::too_few, now_ns);
        return;
    }
    make_ready(slot, now_ns);
}

// What no acknowledgement can hold is never leased: it would come back for ever.
bool GroupStash::drop_oversized(Slot slot, std::int64_t now_ns) {
    if (groups_[slot].total.records <= batch_records_max_) return false;
    drop_group(slot, DropReason::oversized, now_ns);
    return true;
}

std::uint32_t GroupStash::min_size(const Group& group) const {
    return std::min(options_.min_size, group.size);
}

// The group ships with what is live now; the rest leaves.
void GroupStash::make_ready(Slot slot, std::int64_t now_ns) {
    Group& group = groups_[slot];
    select_members(group);
    if (drop_oversized(slot, now_ns)) return;
    if (options_.zero_variance == ZeroVariance::drop && flat(group)) {
        if (flat_run_ < options_.zero_variance_run) {
            flat_run_++;
            drop_group(slot, DropReason::zero_variance, now_ns);
            return;
        }
        flat_run_ = 0;
    } else {
        flat_run_ = 0;
    }
    group.state = GroupState::ready;
    (last_ready_ == Group::none ? first_ready_ : groups_[last_ready_].readier) = slot;
    group.unreadier = last_ready_;
    group.readier = Group::none;
    last_ready_ = slot;
    ready_++;
}

// Out of the list of the ready.
void GroupStash::unready(Slot slot) {
    const Group& group = groups_[slot];
    (group.unreadier == Group::none ? first_ready_ : groups_[group.unreadier].readier) =
        group.readier;
    (group.readier == Group::none ? last_ready_ : groups_[group.readier].unreadier) =
        group.unreadier;
    ready_--;
}

// Given back: it has been ready for longer than those that have become so since.
void GroupStash::ready_again(Slot slot) {
    Group& group = groups_[slot];
    group.state = GroupState::ready;
    (first_ready_ == Group::none ? last_ready_ : groups_[first_ready_].unreadier) = slot;
    group.readier = first_ready_;
    group.unreadier = Group::none;
    first_ready_ = slot;
    ready_++;
}

void GroupStash::select_members(Group& group) {
    const bool unfinished = group.live + group.failed < group.members.size();
    if (!unfinished && group.live <= group.size) return;
    for (Member& member : group.members) {
        if (member.state == MemberState::open) drop_segments(group, member, DropReason::unfinished);
    }
    group.forget_open_members();
    if (group.live <= group.size) return;
    std::vector<Member*> finished;
    for (Member& member : group.members) {
        if (member.state == MemberState::live) finished.push_back(&member);
    }
    if (options_.select == Select::first) {
        std::ranges::sort(finished, [](const Member* a, const Member* b) {
            return static_cast<std::int32_t>(a->finished - b->finished) < 0;
        });
    } else {
        for (std::size_t i = finished.size(); i > 1; i--) {
            std::swap(finished[i - 1], finished[next_random(random_) % i]);
        }
    }
    for (std::size_t i = group.size; i < finished.size(); i++) {
        drop_segments(group, *finished[i], DropReason::surplus);
        finished[i]->state = MemberState::open;  // to be forgotten
        group.live--;
    }
    group.forget_open_members();
}

bool GroupStash::flat(const Group& group) const {
    double low = 0;
    double high = 0;
    std::uint32_t rewarded = 0;
    for (const Member& member : group.members) {
        if (member.state != MemberState::live) continue;
        if (member.rewarded != RewardState::there) continue;
        low = rewarded == 0 ? member.reward : std::min(low, member.reward);
        high = rewarded == 0 ? member.reward : std::max(high, member.reward);
        rewarded++;
    }
    return rewarded >= 2 && high - low <= options_.zero_variance_tolerance;
}

bool GroupStash::is_stale(std::int64_t version_min, std::int64_t version) const {
    return options_.max_lag >= 0 && version >= 0 && version_min >= 0 &&
           version - version_min > options_.max_lag;
}

// Asked again when a batch is cut. True if members, or the group with them, were dropped.
bool GroupStash::drop_stale(Slot slot, std::int64_t now_ns, std::int64_t version) {
    if (options_.max_lag < 0) return false;
    Group& group = groups_[slot];
    bool dropped = false;
    for (Member& member : group.members) {
        if (member.state != MemberState::live || !is_stale(member.version_min, version)) continue;
        member.withheld = true;
        if (options_.stale == Stale::withhold) continue;
        drop_segments(group, member, DropReason::stale);
        fail_member(group, member);
        touched_.push_back(slot);
        dropped = true;
    }
    if (dropped && group.live < min_size(group)) drop_group(slot, DropReason::too_few, now_ns);
    return dropped;
}

void GroupStash::producer_gone(std::uint32_t lane, std::uint32_t epoch, std::int64_t now_ns) {
    for (Slot slot = oldest_; slot != Group::none;) {
        Group& group = groups_[slot];
        const Slot next = group.younger;
        bool changed = leave_to_rivals(group, lane, epoch);
        for (Member& member : group.members) {
            if (group.state != GroupState::open || member.state != MemberState::open) continue;
            if (!member.is_from(lane, epoch)) continue;
            drop_segments(group, member, DropReason::unfinished);
            fail_member(group, member);
            member.left = true;
            changed = true;
        }
        if (changed) {
            touched_.push_back(slot);
            evaluate(slot, now_ns);
        }
        slot = next;
    }
}

GroupStash::Slot GroupStash::open_group(const Arrival& arrival, std::int64_t now_ns) {
    const Slot slot = groups_.take();
    Group& group = groups_[slot];
    group.key = arrival.key;
    group.state = GroupState::open;
    group.expired = false;
    group.size = arrival.group_size != 0 ? arrival.group_size : options_.group_size;
    group.live = group.failed = 0;
    group.rivals = 0;
    group.total = {};
    group.seen = group.settled = group.lanes = 0;
    group.source_id = arrival.source_id;
    group.opened_ns =
        arrival.sent_ns ? std::clamp<std::int64_t>(*arrival.sent_ns, 0, now_ns) : now_ns;
    group.due_ns = group.opened_ns + options_.deadline_ns;
    line_up(slot);
    index_.insert(group.key, slot);
    account_.groups_opened++;
    return slot;
}

// Behind those that are older. What a predecessor had comes again in another order, in which
// neighbours are close: the look back is short, and bounded.
void GroupStash::line_up(Slot slot) {
    constexpr int look_back = 256;
    Group& group = groups_[slot];
    Slot before = youngest_;
    for (int i = 0; before != Group::none && groups_[before].opened_ns > group.opened_ns; i++) {
        if (i == look_back) break;
        before = groups_[before].older;
    }
    group.older = before;
    group.younger = before == Group::none ? oldest_ : groups_[before].younger;
    (before == Group::none ? oldest_ : groups_[before].younger) = slot;
    (group.younger == Group::none ? youngest_ : groups_[group.younger].older) = slot;
    if (group.opened_ns < newest_ns_) return set_due(slot, group.due_ns);
    newest_ns_ = group.opened_ns;
    if (next_due_ == Group::none) next_due_ = slot;
}

void GroupStash::close_group(Slot slot, std::int64_t now_ns) {
    Group& group = groups_[slot];
    if (group.state == GroupState::ready) unready(slot);
    tombstones_.bury(group.key, now_ns);
    index_.erase(group.key, slot);
    if (next_due_ == slot) next_due_ = group.younger;
    (group.older == Group::none ? oldest_ : groups_[group.older].younger) = group.younger;
    (group.younger == Group::none ? youngest_ : groups_[group.younger].older) = group.older;
    group.state = GroupState::free;
    group.members.clear();  // now, while they are in cache
    touched_.push_back(slot);
    groups_.give_back(slot);
}

void GroupStash::drop(const MemberSegment& record, DropReason reason) {
    const Amount amount{1, record.n_tokens};
    account_.held -= amount;
    account_.dropped[static_cast<std::size_t>(reason)] += amount;
    dropped_.push_back({record.tag, reason});
}

void GroupStash::drop_segments(Group& group, Member& member, DropReason reason) {
    group.total -= member.segments.amount();
    for (const MemberSegment& segment : member.segments.all()) drop(segment, reason);
    member.segments.clear();
}

void GroupStash::drop_group(Slot slot, DropReason reason, std::int64_t now_ns) {
    Group& group = groups_[slot];
    for (Member& member : group.members) {
        drop_segments(group, member,
                      member.state == MemberState::failed ? member.why_failed() : reason);
    }
    account_.groups_dropped++;
    close_group(slot, now_ns);
}

}  // namespace rollring
