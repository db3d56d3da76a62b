#pragma once
// The bound on the records that a ring may hold at once, sent and not released
// (ProducerOptions::max_records).
//
//   of each lane: sent or claimed by all its producers, less those that the consumer has released
//
// One producer at a time counts, and claims a record if the bound allows it, under a byte lock that
// ends with its process. It does not wait under the lock, nor long for it, and the lock is free
// before the record is written. A claim of a dead producer counts only if its record was shown.
// Every word has one writer, and a new producer continues with the counts of its lane: records of
// an earlier one count until they are released. A consumer that was killed may not have counted its
// last release: a drained lane holds none, regardless of the counts. A producer that takes such a
// lane corrects them, while no consumer can be about to count.

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
    // Called after the tail and records_total are stored.
    void note_shown(LaneOwner& owner) const {
        if (active()) store_release(owner.counted_tail, peek(owner.tail));
    }
    // Whether the bound allows the record after `sent` of this producer. The claim lasts until the
    // record is sent.
    [[nodiscard]] bool take_place(std::uint64_t sent, LaneOwner& owner);
    // Returns a claim that was not used. False if there is none.
    bool give_back(std::uint64_t sent, LaneOwner& owner);
    // The records that count now.
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
