#pragma once
// Detects a standstill: the producers that wait and their demands. If all wait, lets a group in
// beyond the bounds, or reports the stall.

#include <algorithm>
#include <cstdint>
#include <string>

#include "consumer_core.hpp"
#include "evacuation.hpp"
#include "event_queue.hpp"
#include "group_places.hpp"
#include "group_room.hpp"
#include "group_stash.hpp"
#include "shown_stash.hpp"

namespace rollring {

struct Waits {
    std::uint32_t producers = 0;
    std::uint32_t for_room = 0;
    std::uint32_t for_place = 0;
    std::uint32_t can_choose = 0;  // of these: may send to another group
    std::uint64_t announced = 0;   // groups that have a place, and of which no record was read
    std::uint32_t room_lane = 0;
    std::uint64_t room_bytes = 0;                   // of a producer that waits for room
    std::uint64_t place_bytes = ~std::uint64_t{0};  // the smallest demand of a group
    std::uint64_t tails = 0;  // sum of all tails and demands: changes when one moves
    [[nodiscard]] bool any() const { return for_room + for_place != 0; }
    [[nodiscard]] bool all() const { return producers != 0 && for_room + for_place == producers; }
};

class Standstill {
  public:
    // All must outlive this object. `leases_end`: a trainer that waits for a batch first returns
    // the leased ones, and with them room, so nothing need be let in beyond the bounds before that.
    // NOLINTNEXTLINE(readability-function-size): the parts of one object
    Standstill(ConsumerCore& core, const GroupStash& groups, GroupRoom& room,
               Evacuation& evacuation, ShownStash& shown, EventQueue& events, bool leases_end)
        : core_(&core),
          groups_(&groups),
          room_(&room),
          evacuation_(&evacuation),
          shown_(&shown),
          events_(&events),
          leases_end_(leases_end) {}

    // A record came: nothing is let in beyond the bounds any more.
    void note_came(std::int64_t now_ns) {
        came_ns_ = now_ns;
        room_->widen(0);
        shown_->narrow();
        all_ = false;
    }
    // A record was moved, or a batch was returned.
    void note_moved(std::int64_t now_ns) { moved_ns_ = now_ns; }
    // A batch is complete again.
    void note_cut() { impatient_ = false; }
    // Every producer waited at the last check.
    [[nodiscard]] bool all_wait() const { return all_; }

    [[nodiscard]] Waits who_waits() const;
    [[nodiscard]] bool stuck(const Waits& waits, std::int64_t now_ns) const;
    void let_go(const Waits& waits, std::int64_t now_ns);

  private:
    // Nothing need be done: returned batches will bring room.
    [[nodiscard]] bool awaits_leases() const {
        return leases_end_ && groups_->leased_batches() != 0;
    }
    bool let_in(const Waits& waits, std::int64_t now_ns);
    [[nodiscard]] bool stands_still(const Waits& waits, std::int64_t now_ns) const;
    void tell_stall(const Waits& waits, std::int64_t now_ns);

    ConsumerCore* core_;
    const GroupStash* groups_;
    GroupRoom* room_;
    Evacuation* evacuation_;
    ShownStash* shown_;
    EventQueue* events_;
    bool leases_end_;
    std::int64_t came_ns_ = 0;   // when the last record came
    std::int64_t moved_ns_ = 0;  // when a record was last moved
    std::uint64_t tails_ = 0;
    std::int64_t since_ns_ = 0;
    std::int64_t told_ns_ = 0;
    bool all_ = false;
    bool impatient_ = false;  // no record for long; until a batch is complete again
};

}  // namespace rollring
