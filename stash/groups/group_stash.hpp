#pragma once
// The grouped stash: a deterministic machine. Records, time and policy versions are handed in; what
// to release and what to ship comes out. No shared memory, no clock, no thread, no copy of a
// record: it knows each by a number of its owner's. The same inputs in the same order give the same
// outputs.
//
//   admit(arrival)  open group  -> complete -> ready -> cut() -> leased -> ack() shipped
//                        |            |                            `-> nack() ready again
//                        `-> deadline, failures, zero variance, staleness -> dropped{reason}

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "group.hpp"
#include "rollring/stash_options.hpp"
#include "slab.hpp"
#include "slot_index.hpp"
#include "tombstones.hpp"

namespace rollring {

struct Dropped {
    std::uint32_t tag;
    DropReason reason;
};

// What a batch holds, by value: the lease's owner needs no look into the machine.
struct BatchMember {
    std::uint32_t repetition_id;
    std::uint32_t attempt;
    bool withheld;
    std::optional<double> reward;
    std::int64_t version_min;
    std::uint32_t first_segment;  // in BatchPlan::segments
    std::uint32_t segment_count;
};
struct BatchGroup {
    GroupKey key;
    std::uint32_t size;  // asked for; member_count may be less
    std::int64_t source_id;
    std::uint32_t first_member;  // in BatchPlan::members
    std::uint32_t member_count;
    std::uint32_t bad_rewards;  // of its members, those that are not shipped for it included
};
// Flat, and used again for the next batch: a batch has thousands of members.
struct BatchPlan {
    std::uint64_t id = 0;
    std::vector<BatchGroup> groups;
    std::vector<BatchMember> members;     // of a group: in order of repetition_id
    std::vector<MemberSegment> segments;  // of a member: in order of their index
    // Failure marks of these groups: released with the batch, so that a crash does not forget them.
    std::vector<MemberSegment> settled_marks;

    [[nodiscard]] std::span<const BatchMember> members_of(const BatchGroup& group) const {
        return std::span(members).subspan(group.first_member, group.member_count);
    }
    [[nodiscard]] std::span<const MemberSegment> segments_of(const BatchMember& member) const {
        return std::span(segments).subspan(member.first_segment, member.segment_count);
    }
    void clear() {
        groups.clear();
        members.clear();
        segments.clear();
        settled_marks.clear();
    }
};

struct WaitingGroup {
    GroupKey key;
    std::int64_t age_ns;
    std::int64_t due_ns;  // when its deadline is
    std::uint32_t size;
    std::uint32_t live;
    std::uint32_t failed;
    std::vector<std::uint32_t> missing;  // repetition ids below size that are not settled
    std::optional<std::uint32_t> tag;    // of a record that is there
    std::vector<std::uint32_t> lanes;    // who has sent to it, each once
};

class GroupStash {
  public:
    using Slot = std::uint32_t;

    // A batch never takes more records than `batch_records_max`, whatever the options ask for; a
    // group that has more is dropped.
    explicit GroupStash(StashOptions options, std::uint64_t batch_records_max = ~std::uint64_t{0});

    static constexpr Slot no_slot = SlotIndex::none;

    // Takes a record. `version` is the policy version now; -1 if unknown. `hint`: the slot that
    // prefetch_group() found. Returns the slot of its group, which may be over by now; no_slot if
    // that was over before.
    Slot admit(const Arrival& arrival, std::int64_t now_ns, std::int64_t version,
               Slot hint = no_slot);

    // For whoever has several records at hand: first fetches the index for each, then the groups,
    // then their members, and then admits them, so that their cache misses overlap.
    void prefetch_index(const GroupKey& key) const { index_.prefetch(key); }
    [[nodiscard]] Slot prefetch_group(const GroupKey& key) const;
    void prefetch_member(Slot slot) const;

    // A producer is gone and its lane drained: what it has begun will not be finished.
    void producer_gone(std::uint32_t lane, std::uint32_t epoch, std::int64_t now_ns);

    // Deadlines and tombstones.
    void tick(std::int64_t now_ns);

    // Leases the next batch if enough is complete.
    bool cut(std::int64_t now_ns, std::int64_t version, BatchPlan& batch);
    // Cheap: whether cut() is worth a call.
    [[nodiscard]] bool may_cut() const { return ready_ > 0 && ready_ >= options_.batch_groups; }
    // Whatever is complete, be it less than a batch: for the end of a run.
    bool cut_rest(std::int64_t now_ns, std::int64_t version, BatchPlan& batch);

    void ack(std::uint64_t batch_id, std::int64_t now_ns);
    void nack(std::uint64_t batch_id);

    // The tag of a record which the group holds and for which `is_it(tag)`. Not of one that is
    // leased: those must stay where they are.
    template <class IsIt>
    [[nodiscard]] std::optional<std::uint32_t> movable(const GroupKey& key, IsIt is_it) const {
        const Slot slot = find(key);
        if (slot == no_slot || groups_[slot].state == GroupState::leased) return std::nullopt;
        for (const Member& member : groups_[slot].members) {
            for (const MemberSegment& segment : member.segments.all()) {
                if (is_it(segment.tag)) return segment.tag;
            }
        }
        return std::nullopt;
    }

    // Whether members are still awaited.
    [[nodiscard]] bool is_open(const GroupKey& key) const {
        const Slot slot = find(key);
        return slot != no_slot && groups_[slot].state == GroupState::open;
    }

    // From a predecessor: this group was over so long ago.
    void bury(const GroupKey& key, std::int64_t buried_ns) { tombstones_.bury(key, buried_ns); }

    // Groups opened, changed or closed by the last calls; the caller takes them away.
    [[nodiscard]] std::vector<Slot>& touched() { return touched_; }
    // Its state is `free` once it is over; the key is still that of the group it was.
    [[nodiscard]] const Group& group(Slot slot) const { return groups_[slot]; }
    // Members that may still come to it; 0 once it is complete.
    [[nodiscard]] std::uint64_t members_awaited(const Group& group) const {
        if (group.state != GroupState::open) return 0;
        const std::uint64_t wanted = std::uint64_t{group.size} + options_.extra;
        const std::uint64_t settled =
            group.live + (options_.on_failed == OnFailed::hold ? 0 : group.failed);
        return wanted > settled ? wanted - settled : 0;
    }

    // Records to release, with reasons; the caller takes them away after each call.
    [[nodiscard]] std::vector<Dropped>& dropped() { return dropped_; }

    [[nodiscard]] const StashAccount& account() const { return account_; }
    [[nodiscard]] std::size_t open_groups() const { return index_.size(); }
    [[nodiscard]] std::size_t ready_groups() const { return ready_; }
    [[nodiscard]] std::size_t leased_batches() const { return leased_.size(); }
    [[nodiscard]] bool no_progress(std::int64_t now_ns) const;
    // The oldest groups that wait, at most `count`.
    [[nodiscard]] std::vector<WaitingGroup> explain(std::int64_t now_ns, std::size_t count) const;

  private:
    friend class BatchCutter;

    [[nodiscard]] Slot find(const GroupKey& key) const {
        return index_.find(key, [&](Slot slot) { return groups_[slot].key; });
    }
    Slot open_group(const Arrival& arrival, std::int64_t now_ns);
    void line_up(Slot slot);
    void note_older(Slot slot, const Arrival& arrival);
    void set_due(Slot slot, std::int64_t due_ns);
    void prefetch_closing(const Group& group) const;
    void close_group(Slot slot, std::int64_t now_ns);
    bool place(Group& group, const Arrival& arrival, std::int64_t now_ns, std::int64_t version);
    void drop(const MemberSegment& record, DropReason reason);
    void drop_segments(Group& group, Member& member, DropReason reason);
    bool put(Group& group, Member& member, const Arrival& arrival, std::int64_t version);
    bool take_reward(Member& member, double reward);
    void unready(Slot slot);
    void ready_again(Slot slot);
    void count_marks(const Group& group);
    void drop_group(Slot slot, DropReason reason, std::int64_t now_ns);
    void reset_member(Group& group, Member& member, std::int64_t now_ns);
    void fail_member(Group& group, Member& member);

    // rivals.cpp
    static Member& sender(Group& group, Member& member, const Arrival& arrival);
    Member& outlast(Group& group, Member& member, DropReason reason);
    bool leave_to_rivals(Group& group, std::uint32_t lane, std::uint32_t epoch);

    void evaluate(Slot slot, std::int64_t now_ns);
    bool drop_oversized(Slot slot, std::int64_t now_ns);
    void make_ready(Slot slot, std::int64_t now_ns);
    void select_members(Group& group);
    bool flat(const Group& group) const;
    void expire(Slot slot, std::int64_t now_ns);
    bool lease(std::int64_t now_ns, std::int64_t version, bool partial, BatchPlan& batch);
    void add_to_batch(Slot slot, BatchPlan& batch);
    [[nodiscard]] double served_floor() const;
    bool drop_stale(Slot slot, std::int64_t now_ns, std::int64_t version);
    [[nodiscard]] bool is_stale(std::int64_t version_min, std::int64_t version) const;
    [[nodiscard]] std::uint32_t min_size(const Group& group) const;

    StashOptions options_;
    std::uint64_t batch_records_max_;
    StashAccount account_;
    Slab<Group> groups_;
    SlotIndex index_;
    Tombstones tombstones_;
    Slot oldest_ = Group::none;
    Slot youngest_ = Group::none;
    struct Due {
        std::int64_t at_ns;  // the group's due_ns, or this is void
        Slot slot;
        [[nodiscard]] bool operator>(const Due& other) const { return at_ns > other.at_ns; }
    };
    // Of groups that are due before older ones of the list, or later: a heap, the first in front.
    std::vector<Due> dues_;
    Slot next_due_ = Group::none;  // of the list by age: the first whose deadline has not passed
    std::int64_t newest_ns_ = std::numeric_limits<std::int64_t>::min();
    std::uint32_t finished_ = 0;
    Slot first_ready_ = Group::none;  // since longest
    Slot last_ready_ = Group::none;
    std::size_t ready_ = 0;
    std::uint32_t flat_run_ = 0;
    std::uint64_t random_;
    std::int64_t progress_ns_ = 0;
    std::uint64_t next_batch_ = 1;
    std::unordered_map<std::uint64_t, std::vector<Slot>> leased_;
    std::unordered_map<std::int64_t, double> served_;  // weighted tokens a source has shipped
    std::vector<Dropped> dropped_;
    std::vector<Slot> touched_;
};

}  // namespace rollring
