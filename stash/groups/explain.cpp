// Why nothing ships: which groups wait, for whom, since when.

#include <algorithm>

#include "group_stash.hpp"

namespace rollring {

bool GroupStash::no_progress(std::int64_t now_ns) const {
    return !index_.empty() && now_ns - progress_ns_ >= options_.no_progress_ns;
}

std::vector<WaitingGroup> GroupStash::explain(std::int64_t now_ns, std::size_t count) const {
    std::vector<WaitingGroup> waiting;
    std::vector<bool> settled;
    for (Slot slot = oldest_; slot != Group::none && waiting.size() < count;) {
        const Group& group = groups_[slot];
        slot = group.younger;
        if (group.state != GroupState::open) continue;
        WaitingGroup& said = waiting.emplace_back();
        said.key = group.key;
        said.age_ns = now_ns - group.opened_ns;
        said.due_ns = group.due_ns;
        said.size = group.size;
        said.live = group.live;
        said.failed = group.failed;
        said.tag = group.any_tag();
        // Once over the members, not once for each repetition: a group may claim to be large.
        settled.assign(group.size, false);
        for (const Member& member : group.members) {
            if (member.state == MemberState::open || member.repetition_id >= group.size) continue;
            settled[member.repetition_id] = true;
        }
        for (std::uint32_t repetition = 0; repetition < group.size; repetition++) {
            if (!settled[repetition]) said.missing.push_back(repetition);
        }
        for (const Member& member : group.members) {
            if (std::ranges::find(said.lanes, member.lane) == said.lanes.end()) {
                said.lanes.push_back(member.lane);
            }
        }
    }
    return waiting;
}

}  // namespace rollring
