#pragma once
// The public state of a ring's stash: groups in rows, the account, and the bounds and the room that
// producers read before they open a group. It also wakes producers that wait for a place.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "consumer_core.hpp"
#include "evacuation.hpp"
#include "group_board.hpp"
#include "group_room.hpp"
#include "group_stash.hpp"
#include "rollring/stash.hpp"
#include "slab.hpp"

namespace rollring {

class ShownStash {
  public:
    // All must outlive this object. `max_open_bytes`: 0: no limit.
    // NOLINTNEXTLINE(readability-function-size): the parts of one object
    ShownStash(ConsumerCore& core, const Slab<Record>& records, GroupStash& groups, GroupRoom& room,
               Evacuation& evacuation, std::uint64_t max_open_bytes)
        : core_(&core),
          records_(&records),
          groups_(&groups),
          room_(&room),
          evacuation_(&evacuation),
          max_open_bytes_(max_open_bytes) {}

    // Reserves the board, and then shows the stash as open.
    Result<void> open();
    // `leased_on_top`: leased groups are added to that bound.
    void start(std::uint64_t max_open_groups, bool leased_on_top);
    [[nodiscard]] std::uint32_t rows() const { return board_->rows(); }
    // The oldest groups that wait for members, at most `count`, for display.
    [[nodiscard]] std::vector<GroupStat> oldest_open(std::size_t count, std::int64_t now_ns) const;
    // The same as "; the oldest: (...), (...)", or nothing.
    [[nodiscard]] std::string oldest_text(std::size_t count, std::int64_t now_ns) const;
    // The state of one group, which is not over.
    [[nodiscard]] GroupStat stat_of(std::uint32_t index, std::int64_t now_ns) const;
    [[nodiscard]] std::vector<KnownTombstone> tombstones() const { return board_->tombstones(); }

    // Shows the changes of the touched groups. `has_tombstone`: their tombstones are already
    // written.
    void show_touched(std::int64_t now_ns, bool has_tombstone = false);
    // Sets the name of a row without one: its group may never hold a record to take the name from.
    void name(std::uint32_t index, std::string_view instance_id);
    // Tombstones for groups that the next journal entry ends.
    void prepare_tombstones(std::span<const GroupKey> keys, std::int64_t now_ns) {
        board_->prepare_tombstones(keys, now_ns);
    }

    void show_open_groups();
    void show_room();
    void show_account(bool room_changed);
    void show_batch(const LatestBatch& batch);
    void show_bounds();
    // Lets one more group open than max_open_groups and max_open_bytes allow, until narrow(). False
    // if neither bound is reached, or the ring has no row for the group. `taken`: groups that are
    // open or announced.
    bool widen(std::uint64_t taken);
    void narrow();
    // All records that were there when this stash opened have been read.
    void note_caught_up();

    // The trainer returns: notes whether producers waited for room while it worked.
    void note_back();
    // The trainer leaves with a batch of this many records: no room is made until it returns. Makes
    // room for another such batch now, if producers ever waited for room in its absence.
    void make_room_ahead(std::uint64_t records);

  private:
    StashPage& begin_page();
    void wake_openers();
    void grow_room(std::int64_t now_ns);
    template <class Grow>
    void grow_for(std::uint64_t more_bytes, Grow grow);
    void show_room_of(const Spill& spill);

    ConsumerCore* core_;
    const Slab<Record>* records_;
    GroupStash* groups_;
    GroupRoom* room_;
    Evacuation* evacuation_;
    std::uint64_t max_open_bytes_;
    std::uint64_t max_open_groups_ = 0;
    bool leased_on_top_ = false;
    // Bounds of widen(): each is shown in place of the normal one while it is higher.
    std::uint64_t widened_groups_ = 0;
    std::uint64_t widened_bytes_ = 0;
    std::optional<GroupBoard> board_;
    std::int64_t woke_ns_ = 0;  // when producers that wait to open a group were last woken
    bool room_grew_ = false;    // since then
    std::uint64_t inherited_groups_ = 0;  // open at a predecessor, until all are read again
    bool caught_up_ = false;
    bool ran_short_ = false;  // while the trainer worked
};

}  // namespace rollring
