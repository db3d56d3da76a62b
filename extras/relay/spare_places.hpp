#pragma once
// Places that a receiver takes for a node before any worker asks: so its workers open groups as
// producers of one machine do, and a place gets its group when the first record of the group
// arrives.

#include <cstdint>
#include <vector>

#include "places.hpp"
#include "rollring/producer.hpp"
#include "rollring/relay.hpp"

namespace rollring::relay {

class SparePlaces {
  public:
    SparePlaces(Producer& producer, Places& places);

    // A predecessor's place, which the producer has taken again.
    void inherit(const GroupKey& stand_in);
    // The number that is wanted from now on; a node wants fewer if its workers do not use more.
    void want(std::uint64_t count) { wanted_ = count; }
    // Takes the wanted places while there is plenty, and returns the rest.
    void settle();
    // Gives a place to this group if the group has none and needs one.
    void pass(const GroupKey& key, std::uint32_t group_size, std::uint64_t worker);
    // The available places. If producers need not ask: as many as are wanted.
    [[nodiscard]] std::uint64_t count() const;
    [[nodiscard]] bool is_short() const {
        return RelayProducer::places(*producer_) == RelayProducer::Places::scarce;
    }

  private:
    Producer* producer_;
    Places* places_;
    std::vector<GroupKey> stand_ins_;
    std::uint64_t wanted_ = 0;
    std::uint64_t serial_;          // of a stand-in; differs from a predecessor's
    std::uint32_t group_size_ = 0;  // the largest so far
};

}  // namespace rollring::relay
