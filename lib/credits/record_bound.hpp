#pragma once
// How many records a ring may hold at once (ProducerOptions::max_records): sent and not released.
//
//   of each lane: sent or claimed by all its producers, less those that the consumer has released
//
// One producer at a time counts, and claims a place if there is one: under a byte lock, which ends
// with its process. No producer sleeps with that lock, nor waits long for it, and it is released
// before the record is written. A claim of a dead producer counts only if its record was shown.
// Every word has one writer, and a new producer goes on with the counts of its lane: records that
// an earlier one has sent are there until they are released. A consumer that was killed may not
// have counted its last release: a drained lane holds none, whatever the counts say. A producer
// that takes such a lane puts that right, while no consumer can be about to count.

#include <cstdint>

#include "ring_map.hpp"

namespace rollring {

class RecordBound {
  public:
    // `most`: 0 for no bound.
    RecordBound(const RingMap& map, std::uint64_t most) : map_(&map), most_(most) {}

    [[nodiscard]] bool active() const { return most_ != 0; }
    // Continues with the counts of the lane's earlier producers, under the lane's life lock.
    void start(LaneOwner& owner, const ReaderEntry& reader);
    // Behind the tail and records_total.
    void note_shown(LaneOwner& owner) const {
        if (active()) store_release(owner.counted_tail, peek(owner.tail));
    }
    // Whether the record after `sent` of this producer has a place: it keeps it until it is sent.
    [[nodiscard]] bool take_place(std::uint64_t sent, LaneOwner& owner);
    // Gives back a place that was not used. False if there is none.
    bool give_back(std::uint64_t sent, LaneOwner& owner);
    // Records that count now.
    [[nodiscard]] std::uint64_t count() const;
    [[nodiscard]] std::uint64_t most() const { return most_; }

  private:
    [[nodiscard]] std::uint64_t count_lane(std::uint32_t lane) const;

    const RingMap* map_;
    std::uint64_t most_;
    std::uint64_t sent_before_ = 0;  // by the lane's earlier producers
    std::uint64_t claimed_ = 0;      // by all of them
};

}  // namespace rollring
