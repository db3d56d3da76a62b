#pragma once
// What a stash tells by itself, as events: records that were dropped, members that disagree on the
// size of their group, groups that ship in part because of a deadline, and groups that wait for
// long. The first of a kind is told at once, what follows in sums.

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
    // All outlive this. `options` are those of the stash.
    Notices(const ConsumerCore& core, GroupStash& groups, const ShownStash& shown,
            const StashOptions& options, EventQueue& events)
        : core_(&core), groups_(&groups), shown_(&shown), options_(&options), events_(&events) {}

    // A record that leaves without being shipped; it is still there. Told by tell_new().
    void dropped(const Record& record, DropReason reason);
    // A member of an open group says another size than the first one did.
    void size_conflict(const Record& record, const Group& group);
    // The deadline of this group has passed, and it is complete in part.
    void partial(std::uint32_t index, std::int64_t now_ns);
    // What has happened for the first time.
    void tell_new();
    // All that was not told yet.
    void tell_all(std::int64_t now_ns);
    // Sums, and groups that are overdue. Now and then.
    void tell(std::int64_t now_ns);
    // What was dropped from now on counts for the next batch.
    void note_batch() {
        for (Told& told : told_) told.since_batch = 0;
    }
    // Of records, since the last batch; empty if nothing happened.
    [[nodiscard]] std::string since_batch() const;
    // What the oldest groups wait for, and what was dropped; for people.
    [[nodiscard]] std::string waits_for(std::int64_t now_ns) const;

  private:
    // Of one kind of thing that happens to records.
    struct Told {
        std::uint64_t ever = 0;
        std::uint64_t untold = 0;
        std::uint64_t since_batch = 0;
        std::int64_t told_ns = 0;
        std::string example;  // which record, and the likely cause
        std::uint32_t lane = 0;
        std::uint32_t epoch = 0;
    };
    // After the reasons for a drop.
    static constexpr std::size_t conflict = static_cast<std::size_t>(DropReason::count);

    [[nodiscard]] bool note(std::size_t kind, const Record& record);
    void tell(std::size_t kind, std::int64_t now_ns);
    [[nodiscard]] std::string cause_of_drop(const Record& record, DropReason reason) const;
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
