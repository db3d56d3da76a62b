#pragma once
// Room in lanes: records of groups that stay incomplete are moved to the spill, out of lanes which
// they pin, and the spill is kept compact.

#include <cstdint>
#include <optional>

#include "consumer_core.hpp"
#include "group_room.hpp"
#include "group_stash.hpp"
#include "slab.hpp"
#include "spill.hpp"

namespace rollring {

// Whether a record of so many bytes, its frame included, finds room in the lane as it is now.
bool fits(const RingMap& map, const LaneFeed& feed, std::uint64_t bytes);

class Evacuation {
  public:
    // All outlive this. A record that moves is changed in `records`.
    Evacuation(ConsumerCore& core, Slab<Record>& records, const GroupStash& groups,
               const GroupRoom& room)
        : core_(&core), records_(&records), groups_(&groups), room_(&room) {}

    // After all else that can fail: the spill is ours to write from then on.
    Result<void> open();
    // Null: the ring has none.
    [[nodiscard]] Spill* spill() { return spill_ ? &*spill_ : nullptr; }
    [[nodiscard]] const Spill* spill() const { return spill_ ? &*spill_ : nullptr; }

    // Stragglers leave their lane; and, `asked`, what keeps a producer from the room that it waits
    // for. True if something was moved.
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
