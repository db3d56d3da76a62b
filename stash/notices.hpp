#pragma once
// The events that a stash raises itself: dropped records, members that disagree on the size of
// their group, groups that ship in part because of a deadline, and groups that wait for long. The
// first of a kind is reported at once, later ones as totals.

#include <array>
#include <cstdint>
#include <string>

#include "consumer_core.hpp"
#include "event_queue.hpp"
#include "group_stash.hpp"
#include "shown_stash.hpp"

namespace rollring {

class Notices {
  public:
    // All must outlive this object. `options` are those of the stash.
    Notices(const ConsumerCore& core, GroupStash& groups, const ShownStash& shown,
            const StashOptions& options, EventQueue& events)
        : core_(&core), groups_(&groups), shown_(&shown), options_(&options), events_(&events) {}

    // Notes a dropped record before its release; tell_new() reports it.
    void dropped(const Record& record, DropReason reason);
    // A member of an open group names another size than the first one did.
    void size_conflict(const Record& record, const Group& group);
    // The deadline of this group has passed, and some of its members are complete.
    void partial(std::uint32_t index, std::int64_t now_ns);
    // Reports the first occurrences.
    void tell_new();
    // Reports everything that was not reported yet.
    void tell_all(std::int64_t now_ns);
    // Reports totals and overdue groups from time to time.
    void tell(std::int64_t now_ns);
    // Later drops count for the next batch.
    void note_batch() {
        for (Told& told : told_) told.since_batch = 0;
    }
    // Text on the records dropped since the last batch; empty if there are none.
    [[nodiscard]] std::string since_batch() const;
    // Text on the missing members of the oldest groups, and on the dropped records.
    [[nodiscard]] std::string waits_for(std::int64_t now_ns) const;

  private:
    // The counts of one kind of notice.
    struct Told {
        std::uint64_t ever = 0;
        std::uint64_t untold = 0;
        std::uint64_t since_batch = 0;
        std::int64_t told_ns = 0;
        std::string example;  // names a record and the likely cause
        std::uint32_t lane = 0;
        std::uint32_t epoch = 0;
    };
    // The index behind the drop reasons.
    static constexpr std::size_t conflict = static_cast<std::size_t>(DropReason::count);

    [[nodiscard]] bool note(std::size_t kind, const Record& record);
    void tell(std::size_t kind, std::int64_t now_ns);
    [[nodiscard]] std::string cause_of_drop(const Record& record, DropReason reason) const;
    [[nodiscard]] std::string assumed_size() const;
    [[nodiscard]] std::string text_of(std::size_t kind, std::uint64_t count) const;
    void tell_overdue(std::int64_t now_ns);

    const ConsumerCore* core_;
    GroupStash* groups_;
    const ShownStash* shown_;
    const StashOptions* options_;
    EventQueue* events_;
    std::array<Told, conflict + 1> told_;
    std::uint64_t partial_groups_ = 0;
    std::int64_t overdue_next_ns_ = 0;
    std::int64_t overdue_every_ns_ = 0;
};

}  // namespace rollring
