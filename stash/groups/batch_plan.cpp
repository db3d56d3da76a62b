#include "batch_plan.hpp"

#include <algorithm>

namespace rollring {

void BatchPlan::add(Group& group) {
    const auto first = static_cast<std::uint32_t>(members.size());
    std::uint32_t bad_rewards = 0;
    for (Member& member : group.members) {
        bad_rewards += member.rewarded == RewardState::bad ? 1 : 0;
        if (member.state != MemberState::complete) {
            const auto marks = member.subsequences.all();
            failure_marks.insert(failure_marks.end(), marks.begin(), marks.end());
            continue;
        }
        member.subsequences.sort();
        const auto its = member.subsequences.all();
        // In place: building it elsewhere and copying it would stall.
        BatchMember& shipped = members.emplace_back();
        shipped.repetition_id = member.repetition_id;
        shipped.attempt = member.attempt;
        shipped.withheld = member.withheld;
        if (member.rewarded == RewardState::there) shipped.reward = member.reward;
        shipped.version_min = member.version_min;
        shipped.first_subsequence = static_cast<std::uint32_t>(subsequences.size());
        shipped.subsequence_count = static_cast<std::uint32_t>(its.size());
        subsequences.insert(subsequences.end(), its.begin(), its.end());
    }
    std::ranges::sort(std::span(members).subspan(first), {}, &BatchMember::repetition_id);
    groups.push_back({group.key, group.size, group.source_id, first,
                      static_cast<std::uint32_t>(members.size()) - first, bad_rewards});
}

}  // namespace rollring
