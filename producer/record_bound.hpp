#pragma once
// How many records a ring may hold at once (ProducerOptions::max_records): sent and not released.
//
//   of each lane: claimed by its producer, less those that the consumer has released since
//
// One producer at a time counts, and claims a place if there is one: with a byte lock, which goes
// with its process. Nobody waits in that turn, nor long for it, and it is over before the record is
// written. What a dead producer claimed and did not send does not count. Every word has one writer.
// A consumer that was killed may not have counted its last release: a lane that is drained has
// none, whatever they say.

#include <cstdint>

#include "ring_map.hpp"

namespace rollring {

class RecordBound {
  public:
    // `most`: 0 for no bound.
    RecordBound(const RingMap& map, std::uint64_t most) : map_(&map), most_(most) {}

    [[nodiscard]] bool active() const { return most_ != 0; }
    // Starts with what the lane's earlier producers have left.
    void start(LaneOwner& owner, const ReaderEntry& reader) {
        poke(owner.released_before, peek(reader.released));
        poke(owner.records_claimed, claimed_ = 0);
    }
    // Whether the record after `sent` has a place: it keeps it until it is sent.
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
    std::uint64_t claimed_ = 0;  // by us, ever
};

}  // namespace rollring
