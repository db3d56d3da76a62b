#pragma once
// The grouped stash: a deterministic state machine. Its inputs are records, time and policy
// versions; its outputs are records to release and batches to ship. It knows no shared memory, no
// clock and no thread, and copies no record: it refers to each by its owner's number. The same
// inputs in the same order give the same outputs.
//
//   admit(arrival)  open group  -> complete -> ready -> cut() -> leased -> ack() shipped
//                        |            |                            `-> nack() ready again
//                        `-> deadline, failures, zero variance, staleness -> dropped{reason}

#include <cstdint>
#include <optional>
#include <vector>

#include "batch_plan.hpp"
#include "deadlines.hpp"
#include "group.hpp"
#include "group_lookup.hpp"
#include "leased_groups.hpp"
#include "member_selection.hpp"
#include "placement.hpp"
#include "record_book.hpp"
#include "rollring/stash.hpp"
#include "shortage.hpp"
#include "slab.hpp"
#include "source_shares.hpp"
#include "tombstones.hpp"

namespace rollring {

class GroupStash {
  public:
    using Index = std::uint32_t;

    // A batch never has more records than `batch_records_max`, regardless of the options; a group
    // that has more is dropped.
    explicit GroupStash(StashOptions options, std::uint64_t batch_records_max = ~std::uint64_t{0});

    GroupStash(const GroupStash&) = delete;
    GroupStash& operator=(const GroupStash&) = delete;

    static constexpr Index no_group = GroupLookup::none;

    // Takes a record. `version`: the policy version now; -1 if unknown. Returns the index of its
    // group, which may be finished by now; no_group if it was finished before.
    Index admit(const Arrival& arrival, std::int64_t now_ns, std::int64_t version);

    // A producer is gone and its lane is drained: members that it has begun will not be finished.
    void producer_gone(std::uint32_t lane, std::uint32_t epoch, std::int64_t now_ns);

    // Handles deadlines and tombstones.
    void tick(std::int64_t now_ns);

    // Leases the next batch if enough groups are ready.
    bool cut(std::int64_t now_ns, std::int64_t version, BatchPlan& batch);
    // A cheap check whether cut() is worth a call.
    [[nodiscard]] bool may_cut() const {
        return ready_.size() > 0 && ready_.size() >= options_.batch.of(BatchTarget::Unit::groups) &&
               shortage_.is_over();
    }
    // Leases all ready groups, even if they are less than a batch: for the end of a run.
    bool cut_rest(std::int64_t now_ns, std::int64_t version, BatchPlan& batch);

    // `why`: its records count as dropped for that reason, and not as shipped.
    void ack(std::uint64_t batch_id, std::int64_t now_ns, std::optional<DropReason> why = {});
    void nack(std::uint64_t batch_id);

    // The number of a record of this group for which `is_it(record)` holds. Empty if the group is
    // leased: its records must stay where they are.
    template <class IsIt>
    [[nodiscard]] std::optional<std::uint32_t> movable(const GroupKey& key, IsIt is_it) const {
        const Index index = find(key);
        if (index == no_group || groups_[index].state == GroupState::leased) return std::nullopt;
        for (const Member& member : groups_[index].members) {
            for (const Subsequence& subsequence : member.subsequences.all()) {
                if (is_it(subsequence.record)) return subsequence.record;
            }
        }
        return std::nullopt;
    }

    // Whether members of this group are still awaited.
    [[nodiscard]] bool is_open(const GroupKey& key) const {
        const Index index = find(key);
        return index != no_group && groups_[index].state == GroupState::open;
    }

    // A predecessor finished this group at this time.
    void note_over(const GroupKey& key, std::int64_t over_ns) { tombstones_.add(key, over_ns); }

    // Groups that the last calls opened, changed or closed; the caller empties the list.
    [[nodiscard]] std::vector<Index>& touched() { return touched_; }
    // The state of a finished group is `free`; its key stays until the index is reused.
    [[nodiscard]] const Group& group(Index index) const { return groups_[index]; }
    // Members that may still arrive; 0 once the group is complete.
    [[nodiscard]] std::uint64_t members_awaited(const Group& group) const {
        if (group.state != GroupState::open) return 0;
        const std::uint64_t wanted = std::uint64_t{group.size} + options_.extra;
        const std::uint64_t final_count =
            group.complete + (options_.on_failed == OnFailed::hold ? 0 : group.failed);
        return wanted > final_count ? wanted - final_count : 0;
    }

    // The group of this key, unless it is finished.
    [[nodiscard]] const Group* find_group(const GroupKey& key) const {
        const Index index = find(key);
        return index != no_group ? &groups_[index] : nullptr;
    }
    // The groups by age: those that are overdue, and those that ship in part.
    [[nodiscard]] Deadlines& deadlines() { return deadlines_; }
    // Records to release, with reasons; the caller empties the list after each call.
    [[nodiscard]] std::vector<Dropped>& dropped() { return book_.dropped; }

    [[nodiscard]] const StashAccount& account() const { return book_.account; }
    [[nodiscard]] std::size_t open_groups() const { return lookup_.size(); }
    [[nodiscard]] std::size_t ready_groups() const { return ready_.size(); }
    // Whether a record opened a group without naming its group_size.
    [[nodiscard]] bool assumes_size() const { return assumes_size_; }
    [[nodiscard]] std::size_t leased_batches() const { return leased_.batches(); }
    [[nodiscard]] std::size_t leased_groups() const { return leased_.groups(); }
    [[nodiscard]] bool no_progress(std::int64_t now_ns) const;
    // The oldest groups that wait for members, at most `count`.
    [[nodiscard]] std::vector<Index> oldest_open(std::size_t count) const {
        return deadlines_.oldest_open(count);
    }

  private:
    [[nodiscard]] Index find(const GroupKey& key) const {
        return lookup_.find(key, [&](Index index) { return groups_[index].key; });
    }
    Index open_group(const Arrival& arrival, std::int64_t now_ns);
    void close_group(Index index, std::int64_t now_ns);
    void drop_group(Index index, DropReason reason, std::int64_t now_ns);
    void reopen(Index index, std::int64_t now_ns);
    void evaluate(Index index, std::int64_t now_ns);
    bool drop_oversized(Index index, std::int64_t now_ns);
    void make_ready(Index index, std::int64_t now_ns);
    void expire(Index index, std::int64_t now_ns);
    bool lease(std::int64_t now_ns, std::int64_t version, bool partial, BatchPlan& batch);
    void add_to_batch(Index index, BatchPlan& batch);
    void count_marks(const Group& group);
    bool drop_stale(Index index, std::int64_t now_ns, std::int64_t version);
    [[nodiscard]] std::uint32_t min_size(const Group& group) const;

    StashOptions options_;
    std::uint64_t batch_records_max_;
    bool assumes_size_ = false;
    RecordBook book_;
    Slab<Group> groups_;
    GroupLookup lookup_;
    Tombstones tombstones_;
    Deadlines deadlines_;
    ReadyList ready_;
    Placement placement_;
    MemberSelection selection_;
    SourceShares shares_;
    std::int64_t progress_ns_ = 0;
    std::uint64_t next_batch_ = 1;
    Shortage shortage_;
    LeasedGroups leased_;
    std::vector<Index> touched_;
};

}  // namespace rollring
