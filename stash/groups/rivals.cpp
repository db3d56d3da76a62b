#include "rivals.hpp"

#include <algorithm>
#include <limits>

namespace rollring {

Member& sender(Group& group, Member& member, const Arrival& arrival) {
    const auto is_senders = [&](const Member& one) {
        return one.repetition_id == arrival.repetition_id &&
               one.is_from(arrival.producer_lane, arrival.producer_epoch);
    };
    if (is_senders(member)) return member;
    if (group.rivals != 0) {
        const auto found = std::ranges::find_if(group.members, is_senders);
        if (found != group.members.end()) return *found;
    }
    const bool again =
        member.state == MemberState::open && member.subsequences.has(arrival.subsequence_index);
    if (!again || group.rivals == std::numeric_limits<std::uint16_t>::max()) return member;
    group.rivals++;
    Member& rival = group.add(arrival.repetition_id);
    rival.attempt = arrival.attempt;
    return rival;
}

Member& outlast(Group& group, Member& member, DropReason reason, RecordBook& book) {
    if (group.rivals == 0) return member;
    std::size_t kept = static_cast<std::size_t>(&member - group.members.data());
    const std::uint32_t repetition_id = member.repetition_id;
    for (std::size_t i = 0; i < group.members.size();) {
        Member& other = group.members[i];
        if (i == kept || other.repetition_id != repetition_id) {
            i++;
            continue;
        }
        book.drop_member(group, other, reason);
        group.members.erase(group.members.begin() + static_cast<std::ptrdiff_t>(i));
        group.rivals--;
        kept -= i < kept ? 1 : 0;
    }
    return group.members[kept];
}

bool leave_to_rivals(Group& group, std::uint32_t lane, std::uint32_t epoch, RecordBook& book) {
    if (group.rivals == 0 || group.state != GroupState::open) return false;
    bool any = false;
    for (std::size_t i = 0; i < group.members.size();) {
        Member& member = group.members[i];
        const bool contested =
            std::ranges::count(group.members, member.repetition_id, &Member::repetition_id) > 1;
        if (!contested || !member.is_from(lane, epoch)) {
            i++;
            continue;
        }
        book.drop_member(group, member, DropReason::unfinished);
        group.members.erase(group.members.begin() + static_cast<std::ptrdiff_t>(i));
        group.rivals--;
        any = true;
    }
    return any;
}

}  // namespace rollring
