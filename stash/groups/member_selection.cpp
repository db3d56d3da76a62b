#include "member_selection.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace rollring {
namespace {

// splitmix64: small, seeded, the same everywhere. Source: Steele, Lea, Flood 2014.
std::uint64_t next_random(std::uint64_t& state) {
    std::uint64_t word = state += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
}

}  // namespace

void MemberSelection::select(Group& group) {
    const bool unfinished = group.complete + group.failed < group.members.size();
    if (!unfinished && group.complete <= group.size) return;
    for (Member& member : group.members) {
        if (member.state == MemberState::open)
            book_->drop_member(group, member, DropReason::unfinished);
    }
    group.forget_open_members();
    if (group.complete <= group.size) return;
    std::vector<Member*> finished;
    for (Member& member : group.members) {
        if (member.state == MemberState::complete) finished.push_back(&member);
    }
    if (options_->advanced.select == Select::first) {
        std::ranges::sort(finished, [](const Member* a, const Member* b) {
            return static_cast<std::int32_t>(a->finished - b->finished) < 0;
        });
    } else {
        for (std::size_t i = finished.size(); i > 1; i--) {
            std::swap(finished[i - 1], finished[next_random(random_) % i]);
        }
    }
    for (std::size_t i = group.size; i < finished.size(); i++) {
        book_->drop_member(group, *finished[i], DropReason::surplus);
        finished[i]->state = MemberState::open;  // so that it is forgotten
        group.complete--;
    }
    group.forget_open_members();
}

bool MemberSelection::drops_flat(const Group& group) {
    const bool drops = options_->zero_variance == ZeroVariance::drop && flat(group) &&
                       flat_run_ < options_->advanced.zero_variance_run;
    flat_run_ = drops ? flat_run_ + 1 : 0;
    return drops;
}

bool MemberSelection::flat(const Group& group) const {
    double low = 0;
    double high = 0;
    std::uint32_t rewarded = 0;
    for (const Member& member : group.members) {
        if (member.state != MemberState::complete) continue;
        if (member.rewarded != RewardState::there) continue;
        low = rewarded == 0 ? member.reward : std::min(low, member.reward);
        high = rewarded == 0 ? member.reward : std::max(high, member.reward);
        rewarded++;
    }
    return rewarded >= 2 &&
           (are_flat(low, high) || high - low <= options_->advanced.zero_variance_tolerance);
}

}  // namespace rollring
