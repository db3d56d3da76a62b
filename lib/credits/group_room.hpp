#pragma once
// The memory that open groups may still need, and the memory available: producers read both before
// they open another group (lib/credits/admission.hpp). The argument is in docs/progress.md.
//
//   owed   the bytes that open groups have yet to receive + the records in the spill
//          + the records that would have to move there for every lane to go on
//   room   the bytes that the spill may hold + those that the fullest lane can still keep
//          without blocking

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ring_map.hpp"

namespace rollring {

// The demand of a lane's producer, in bytes: for a record, or to open a group; 0: it does not wait.
struct Wish {
    std::uint64_t room_bytes = 0;
    std::uint64_t place_bytes = 0;
    bool can_choose = false;  // while it waits to open that group, it may send to another one
};
Wish wish_of(const RingMap& map, std::uint32_t lane);

// The sums over the producers' lanes; each lane is added once.
class LaneLoad {
  public:
    // `share`: the present GroupRoom::lane_share().
    explicit LaneLoad(std::uint64_t share) : share_(share), spare_(share) {}

    // `pinned_bytes` from the oldest unreleased record on, which must be moved before the lane can
    // go on; `unreleased_bytes` of records, without the holes between them.
    void add(std::uint64_t pinned_bytes, std::uint64_t unreleased_bytes) {
        const std::uint64_t within = std::min(pinned_bytes, share_);
        // Records beyond the lane's share move to the spill, so that the rest becomes free.
        owed_ += std::min(pinned_bytes - within, unreleased_bytes);
        spare_ = std::min(spare_, share_ - within);
    }
    [[nodiscard]] std::uint64_t owed_bytes() const { return owed_; }
    // The bytes that the fullest lane can still keep.
    [[nodiscard]] std::uint64_t spare_bytes() const { return spare_; }

  private:
    std::uint64_t share_;
    std::uint64_t spare_;
    std::uint64_t owed_ = 0;
};

// The spill's bytes in use, its capacity now, and its largest capacity.
struct SpillLoad {
    std::uint64_t live_bytes = 0;
    std::uint64_t usable_bytes = 0;
    std::uint64_t usable_most_bytes = 0;
};

class GroupRoom {
  public:
    // `control` is the ring's, writable; both must outlive this object.
    GroupRoom(const RingMap& map, ReaderControl& control);
    void start(std::uint32_t group_size, std::uint32_t group_extra);

    // A record was read.
    void saw(std::uint32_t lines);
    // It belongs to the group of this index in the stash, and came from this lane.
    void saw_member(std::uint32_t index, std::uint32_t lines, std::uint32_t lane);
    // The group waits for this many members; `over`: it is finished.
    void owes(std::uint32_t index, std::uint64_t members, bool over);
    // Every record of groups that were open under a predecessor has been read again.
    void forget_inherited() { inherited_bytes_ = 0; }

    // Shows both to producers. True if a group may be opened now that could not be opened before.
    bool show(const LaneLoad& lanes, const SpillLoad& spill);
    // Without a spill nothing is promised: only groups are counted.
    void show_no_room();
    // Makes this much room available although it was promised to others, because every producer
    // waits. Ends when less is owed than now: then there is room as promised, and not for further
    // groups.
    void widen(std::uint64_t bytes) {
        widened_bytes_ = bytes;
        widened_owed_bytes_ = shown_owed_bytes_;
    }

    [[nodiscard]] std::uint64_t owed_bytes() const { return shown_owed_bytes_; }
    [[nodiscard]] std::uint64_t room_bytes() const { return shown_room_bytes_; }
    // Groups that are open or announced.
    [[nodiscard]] std::uint64_t taken_places(std::span<const std::uint32_t> lanes) const;
    // Claims of all producers together that were not read yet.
    [[nodiscard]] std::uint64_t claimed_bytes(std::span<const std::uint32_t> lanes) const;

    // Whether a producer that waits to open a group of this many bytes may do so.
    [[nodiscard]] bool lets_in(std::uint64_t bytes, std::span<const std::uint32_t> lanes) const;

    // Whether claims of this many bytes more fit into the room.
    [[nodiscard]] bool has_room(std::uint64_t bytes, std::span<const std::uint32_t> lanes) const {
        return shown_owed_bytes_ + claimed_bytes(lanes) + bytes <= shown_room_bytes_;
    }
    // The claims of this many records.
    [[nodiscard]] std::uint64_t claim_bytes(std::uint64_t records) const;
    // The bytes that two more groups would need; and whether there is too little room for them.
    [[nodiscard]] std::uint64_t ahead_bytes() const;
    [[nodiscard]] bool runs_short(std::span<const std::uint32_t> lanes) const {
        return shown_room_bytes_ != 0 && !has_room(ahead_bytes(), lanes);
    }

    // The bytes that a lane can hold for long without blocking its producer
    // (lib/ring/lane_writer.hpp), less a record, by which evacuation may stop above it.
    [[nodiscard]] std::uint64_t lane_share() const;

  private:
    [[nodiscard]] std::uint32_t longest_lines() const;
    // The longest record that its producer has declared.
    [[nodiscard]] std::uint32_t declared_lines(std::uint32_t lane) const;

    const RingMap* map_;
    ReaderControl* control_;
    struct Owed {
        std::uint64_t lines = 0;
        std::uint32_t member_lines = 0;  // the longest record so far, or expected
    };
    std::vector<Owed> owed_;  // by index
    std::uint64_t owed_total_lines_ = 0;
    std::uint64_t inherited_bytes_ = 0;
    std::uint64_t widened_bytes_ = 0;
    std::uint64_t widened_owed_bytes_ = 0;  // the debt at that time
    std::uint64_t shown_owed_bytes_ = 0;
    std::uint64_t shown_room_bytes_ = 0;
    std::uint64_t most_bytes_ = 0;  // the most that could ever be available
    std::uint32_t group_size_ = 0;
    std::uint32_t group_extra_ = 0;
    // The longest of the last one or two thousand records.
    std::uint32_t longest_lines_ = 0;
    std::uint32_t longest_before_lines_ = 0;
    std::uint32_t seen_ = 0;
};

}  // namespace rollring
