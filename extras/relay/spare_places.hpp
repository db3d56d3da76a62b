#pragma once
// Places that a receiver has for a node before anybody there asks: so its workers open groups as
// producers of one machine do, and a place changes hands when the first record of a group comes.

#include <cstdint>
#include <vector>

#include "places.hpp"
#include "rollring/producer.hpp"
#include "rollring/relay.hpp"

namespace rollring::relay {

class SparePlaces {
  public:
    SparePlaces(Producer& producer, Places& places);

    // A predecessor's, of which the producer has heard.
    void inherit(const GroupKey& stand_in);
    // From now on. Fewer are wanted by a node whose workers have no more in use.
    void want(std::uint64_t count) { wanted_ = count; }
    // Takes what is wanted while there is plenty, and gives back the rest.
    void settle();
    // One becomes this group's, if that has none and needs one.
    void pass(const GroupKey& key, std::uint32_t group_size, std::uint64_t worker);
    // That are to be had. Where nobody need ask: as many as are wanted.
    [[nodiscard]] std::uint64_t count() const;
    [[nodiscard]] bool is_short() const {
        return RelayProducer::places(*producer_) == RelayProducer::Places::scarce;
    }

  private:
    Producer* producer_;
    Places* places_;
    std::vector<GroupKey> stand_ins_;
    std::uint64_t wanted_ = 0;
    std::uint64_t serial_;          // of a stand-in; not where a predecessor's were
    std::uint32_t group_size_ = 0;  // the largest that has come
};

}  // namespace rollring::relay
