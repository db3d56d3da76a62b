#pragma once
// The contents of a batch by value, so that the lease's owner need not ask the state machine.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "group.hpp"

namespace rollring {

struct BatchMember {
    std::uint32_t repetition_id;
    std::uint32_t attempt;
    bool withheld;
    std::optional<double> reward;
    std::int64_t version_min;
    std::uint32_t first_subsequence;  // in BatchPlan::subsequences
    std::uint32_t subsequence_count;
};
struct BatchGroup {
    GroupKey key;
    std::uint32_t size;  // asked for; member_count may be less
    std::int64_t source_id;
    std::uint32_t first_member;  // in BatchPlan::members
    std::uint32_t member_count;
    std::uint32_t bad_rewards;  // of its members, also of those dropped for it
};
// Flat and reused for the next batch, because a batch has thousands of members.
struct BatchPlan {
    std::uint64_t id = 0;
    std::vector<BatchGroup> groups;
    std::vector<BatchMember> members;       // of a group: in order of repetition_id
    std::vector<Subsequence> subsequences;  // of a member: in order of their index
    // Failure marks of these groups: released with the batch, so that a crash does not lose them.
    std::vector<Subsequence> failure_marks;

    [[nodiscard]] std::span<const BatchMember> members_of(const BatchGroup& group) const {
        return std::span(members).subspan(group.first_member, group.member_count);
    }
    [[nodiscard]] std::span<const Subsequence> subsequences_of(const BatchMember& member) const {
        return std::span(subsequences).subspan(member.first_subsequence, member.subsequence_count);
    }
    // Adds a group that ships.
    void add(Group& group);
    void clear() {
        groups.clear();
        members.clear();
        subsequences.clear();
        failure_marks.clear();
    }
};

}  // namespace rollring
