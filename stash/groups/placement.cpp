#include "placement.hpp"

#include <cmath>

#include "rivals.hpp"

namespace rollring {
namespace {

bool is_failure(Status status) {
    return status != Status::completed && status != Status::truncated;
}

}  // namespace

Placed Placement::place(Group& group, const Arrival& arrival, std::int64_t version) {
    const auto refuse = [&](DropReason reason) {
        book_->drop(subsequence_of(arrival), reason);
        return Placed::refused;
    };
    if (arrival.numbered != group.numbered) return refuse(DropReason::mixed_numbers);
    Placed placed = Placed::added;
    Member* member = arrival.numbered ? group.find(arrival.repetition_id) : nullptr;
    if (member == nullptr) {
        const bool full =
            group.members.size() - group.rivals >= std::size_t{group.size} + options_->extra;
        if (full || group.state == GroupState::ready) return refuse(DropReason::surplus);
        member = &group.add(arrival.numbered ? arrival.repetition_id
                                             : static_cast<std::uint32_t>(group.members.size()));
        member->attempt = arrival.attempt;
    } else if (arrival.attempt < member->attempt) {
        return refuse(DropReason::superseded);
    } else if (arrival.attempt > member->attempt) {
        member = &outlast(group, *member, DropReason::superseded, *book_);
        reset(group, *member);
        placed = Placed::retried;
        member->attempt = arrival.attempt;
    } else if (member->left) {
        reset(group, *member);
        placed = Placed::retried;
        member->attempt = arrival.attempt;
    } else if (member = &sender(group, *member, arrival);
               member->state != MemberState::open ||
               member->subsequences.has(arrival.subsequence_index)) {
        const bool rest_of_bad = member->state == MemberState::failed &&
                                 member->rewarded == RewardState::bad &&
                                 !member->subsequences.has(arrival.subsequence_index);
        return refuse(rest_of_bad ? DropReason::bad_reward : DropReason::duplicate);
    }
    if (put(group, *member, arrival, version))
        outlast(group, *member, DropReason::duplicate, *book_);
    return placed;
}

// A higher attempt replaces the earlier records of its member.
void Placement::reset(Group& group, Member& member) {
    book_->drop_member(group, member, DropReason::superseded);
    if (member.state == MemberState::complete) group.complete--;
    if (member.state == MemberState::failed) group.failed--;
    group.final_members &= ~Group::bit(member.repetition_id);
    const std::uint32_t repetition_id = member.repetition_id;
    member = Member{};
    member.repetition_id = repetition_id;
}

// Adds the record to its member. True if that makes the member final.
bool Placement::put(Group& group, Member& member, const Arrival& arrival, std::int64_t version) {
    member.lane = static_cast<std::uint16_t>(arrival.producer_lane);
    member.producer_epoch = arrival.producer_epoch;
    group.lanes |= Group::bit(arrival.producer_lane % 64);
    const bool stale = is_stale(*options_, arrival.policy_version_min, version);
    if (stale && options_->stale == Stale::drop) {
        book_->drop_member(group, member, DropReason::stale);
        book_->drop(subsequence_of(arrival), DropReason::stale);
        group.fail(member);
        return true;
    }
    member.withheld |= stale;
    member.subsequences.add(subsequence_of(arrival));
    group.total += {1, arrival.n_tokens};
    if (arrival.policy_version_min >= 0 &&
        (member.version_min < 0 || arrival.policy_version_min < member.version_min)) {
        member.version_min = arrival.policy_version_min;
    }
    if (is_failure(arrival.status) || (arrival.reward && !take_reward(member, *arrival.reward))) {
        group.fail(member);
        return true;
    }
    if (arrival.last_subsequence) {
        member.last_index = arrival.subsequence_index;
        member.has_last = true;
    }
    if (!member.whole()) return false;
    member.state = MemberState::complete;
    member.finished = finished_++;
    group.complete++;
    group.final_members |= Group::bit(member.repetition_id);
    return true;
}

// False if the reward is not finite and the policy demands one of every member.
bool Placement::take_reward(Member& member, double reward) {
    const bool good = std::isfinite(reward);
    book_->account.bad_rewards += good ? 0 : 1;
    if (member.rewarded == RewardState::bad) return true;  // another subsequence had a bad one
    member.reward = reward;
    member.rewarded = good ? RewardState::there : RewardState::bad;
    return good || options_->bad_reward == BadReward::absent;
}

}  // namespace rollring
