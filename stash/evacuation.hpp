#pragma once
// Room in lanes: moves records of groups that stay incomplete to the spill, out of the lanes that
// they pin, and keeps the spill compact.

#include <cstdint>
#include <optional>

#include "consumer_core.hpp"
#include "group_room.hpp"
#include "group_stash.hpp"
#include "slab.hpp"
#include "spill.hpp"

namespace rollring {

// Whether the lane has room now for a record of this many bytes, its frame included.
bool fits(const RingMap& map, const LaneFeed& feed, std::uint64_t bytes);

class Evacuation {
  public:
    // All must outlive this object. A move changes the record's entry in `records`.
    Evacuation(ConsumerCore& core, Slab<Record>& records, const GroupStash& groups,
               const GroupRoom& room)
        : core_(&core), records_(&records), groups_(&groups), room_(&room) {}

    // Opened after everything else that can fail, because the spill is written from then on.
    Result<void> open();
    // Null if the ring has no spill.
    [[nodiscard]] Spill* spill() { return spill_ ? &*spill_ : nullptr; }
    [[nodiscard]] const Spill* spill() const { return spill_ ? &*spill_ : nullptr; }

    // Evacuates stragglers and, if `asked`, the records that keep a waiting producer from its room.
    // True if a record was moved.
    bool make_room(bool asked, std::int64_t now_ns);

  private:
    enum class Move { moved, stays, no_room };  // stays: leased, or damaged

    std::optional<RecordRef> evacuate(const RecordRef& from, const Frame& frame);
    bool evacuate_oldest(LaneFeed& feed, std::int64_t now_ns);
    bool compact(LaneFeed& own, std::uint64_t dead_bytes_kept);
    Move move_oldest(LaneFeed& feed);
    [[nodiscard]] bool straggles(const LaneFeed& feed) const;
    [[nodiscard]] bool holds_dead_bytes(const LaneFeed& feed) const;

    ConsumerCore* core_;
    Slab<Record>* records_;
    const GroupStash* groups_;
    const GroupRoom* room_;
    std::optional<Spill> spill_;
};

}  // namespace rollring
