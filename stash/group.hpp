#pragma once
// One open group: its members, their segments, and what can still become of it.

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "rollring/record_ref.hpp"
#include "rollring/stash_options.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

// What the stash needs to know of a record. Filled from a TrajectoryView by whoever polls.
struct Arrival {
    RecordRef ref{};
    std::uint32_t producer_lane = 0;   // with the epoch: who owes the rest of a member; not
    std::uint32_t producer_epoch = 0;  // ref.lane, for the record may have been moved
    GroupKey key;
    std::uint32_t repetition_id = 0;
    std::uint32_t group_size = 0;
    std::uint16_t segment_index = 0;
    bool last_segment = true;
    std::uint32_t attempt = 0;
    Status status = Status::completed;
    std::uint32_t n_tokens = 0;
    std::int64_t policy_version_min = -1;
    std::optional<double> reward = {};
    std::int64_t source_id = 0;
};

struct MemberSegment {
    RecordRef ref;
    std::uint32_t n_tokens;
    std::uint16_t index;
};

enum class MemberState : std::uint8_t {
    open,    // segments are missing
    live,    // final, can be shipped
    failed,  // settled without anything to ship
};

struct Member {
    std::uint32_t repetition_id = 0;
    std::uint32_t attempt = 0;
    MemberState state = MemberState::open;
    bool withheld = false;                // stale: for the baseline only
    std::uint32_t segments_expected = 0;  // 0 until the last one has come
    std::uint32_t lane = 0;
    std::uint32_t producer_epoch = 0;
    std::uint64_t finish_order = 0;
    std::int64_t version_min = -1;
    std::optional<double> reward = {};
    boost::container::small_vector<MemberSegment, 1> segments;

    [[nodiscard]] Amount amount() const {
        Amount sum;
        for (const MemberSegment& segment : segments) sum += {1, segment.n_tokens};
        return sum;
    }
    [[nodiscard]] bool has_segment(std::uint16_t index) const {
        for (const MemberSegment& segment : segments) {
            if (segment.index == index) return true;
        }
        return false;
    }
};

enum class GroupState : std::uint8_t { free, open, ready, leased };

struct Group {
    GroupKey key;
    GroupState state = GroupState::free;
    bool expired = false;  // its deadline passed and the policy holds it
    std::uint32_t size = 0;
    std::uint32_t live = 0;
    std::uint32_t failed = 0;
    std::int64_t source_id = 0;
    std::int64_t opened_ns = 0;
    std::uint64_t opened_order = 0;
    std::uint64_t ready_order = 0;
    std::vector<Member> members;
    // in order of opening, through the slab
    std::uint32_t older = none;
    std::uint32_t younger = none;

    static constexpr std::uint32_t none = ~std::uint32_t{0};

    [[nodiscard]] Member* find(std::uint32_t repetition_id) {
        for (Member& member : members) {
            if (member.repetition_id == repetition_id) return &member;
        }
        return nullptr;
    }
    [[nodiscard]] Amount amount() const {
        Amount sum;
        for (const Member& member : members) sum += member.amount();
        return sum;
    }
    // What a batch counts: one record is one sequence to train on.
    [[nodiscard]] Amount live_amount() const {
        Amount sum;
        for (const Member& member : members) {
            if (member.state == MemberState::live) sum += member.amount();
        }
        return sum;
    }
};

}  // namespace rollring
