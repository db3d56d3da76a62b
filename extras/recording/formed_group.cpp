#include "formed_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace rollring::recording {
namespace {

constexpr double absent = std::numeric_limits<double>::quiet_NaN();

// The subsequences of one member, in their order.
using Member = std::vector<const TrajectoryView*>;

// By repetition. A record without a repetition ID is a member of its own.
std::vector<Member> members_of(std::span<const TrajectoryView* const> records) {
    std::vector<std::tuple<std::uint64_t, std::uint16_t, std::size_t>> order;
    for (std::size_t i = 0; i < records.size(); i++) {
        const Meta& meta = records[i]->meta();
        order.emplace_back(meta.repetition_id.has_value() ? meta.repetition_id.value_or(0)
                                                          : (std::uint64_t{1} << 32) + i,
                           meta.subsequence_index, i);
    }
    std::ranges::sort(order);
    std::vector<Member> members;
    for (std::size_t i = 0; i < order.size(); i++) {
        const bool same = i > 0 && std::get<0>(order[i]) == std::get<0>(order[i - 1]);
        if (!same) members.emplace_back();
        members.back().push_back(records[std::get<2>(order[i])]);
    }
    return members;
}

// That of the last subsequence that has one.
double reward_of(const Member& member) {
    double reward = absent;
    for (const TrajectoryView* one : member) reward = one->meta().reward.value_or(reward);
    return reward;
}

bool has_reward(const Member& member) {
    return std::ranges::any_of(
        member, [](const TrajectoryView* one) { return one->meta().reward.has_value(); });
}

}  // namespace

Result<FormedGroup> FormedGroup::of(std::span<const TrajectoryView* const> records,
                                    std::uint32_t size, const AdvantageFormula& formula) {
    if (records.empty()) return refused(Errc::invalid_argument, "a group without records");
    const GroupKey key = records.front()->group_key();
    for (const TrajectoryView* one : records) {
        if (one->group_key() != key) {
            return refused(Errc::invalid_argument, "the records are of several groups");
        }
    }
    const std::vector<Member> members = members_of(records);
    std::vector<double> rewards;
    rewards.reserve(members.size());
    for (const Member& member : members) rewards.push_back(reward_of(member));
    std::vector<double> advantages(rewards.size());
    group_advantages(rewards, formula, advantages);
    FormedGroup group;
    group.begin(records.size());
    BatchGroupInfo info{.key = key,
                        .size = size,
                        .members = static_cast<std::uint32_t>(members.size()),
                        .bad_rewards = 0,
                        .unrewarded = 0};
    for (std::uint32_t i = 0; i < members.size(); i++) {
        for (const TrajectoryView* one : members[i]) {
            group.add(*one, i, false, rewards[i], advantages[i]);
        }
        if (!has_reward(members[i])) {
            info.unrewarded++;
        } else if (!std::isfinite(rewards[i])) {
            info.bad_rewards++;
        }
    }
    group.end_group(info);
    return group;
}

}  // namespace rollring::recording
