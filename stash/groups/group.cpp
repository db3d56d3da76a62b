#include "group.hpp"

namespace rollring {

// Loops over the members and not over the repetitions, because a group may claim to be large.
std::vector<std::uint32_t> Group::missing() const {
    std::vector<bool> there(size, false);
    for (const Member& member : members) {
        if (member.state == MemberState::open || member.repetition_id >= size) continue;
        there[member.repetition_id] = true;
    }
    std::vector<std::uint32_t> found;
    for (std::uint32_t repetition = 0; repetition < size; repetition++) {
        if (!there[repetition]) found.push_back(repetition);
    }
    return found;
}

std::vector<Sender> Group::senders() const {
    std::vector<Sender> found;
    for (const Member& member : members) {
        const Sender one{member.lane, member.producer_epoch};
        if (std::ranges::find(found, one) == found.end()) found.push_back(one);
    }
    return found;
}

}  // namespace rollring
