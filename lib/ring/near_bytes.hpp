#pragma once
// The bytes from a lane's start that its records reuse while the consumer keeps up, so that they
// are still in a cache when they are read. Lanes that are read by turns share the last-level cache,
// so each has a part of it.

#include <cstdint>

namespace rollring {

// The default of RingOptions::soft_bytes: the smaller of 4 MiB and a quarter of the cache.
std::uint64_t default_soft_bytes();

class NearBytes {
  public:
    // As of RingOptions. `soft_bytes` of a whole lane: no lane turns back early.
    NearBytes(std::uint64_t soft_bytes, std::uint64_t lane_bytes);
    NearBytes() = default;

    // Of a lane with records of `record_bytes`, a multiple of 64. `busy_lanes` is the count that
    // the consumer shows: 0 if it shows none, and any value if its word was overwritten.
    [[nodiscard]] std::uint64_t of_lane(std::uint32_t busy_lanes, std::uint64_t record_bytes) const;

  private:
    std::uint64_t soft_bytes_ = 0;
    std::uint64_t lane_bytes_ = 0;
    std::uint64_t all_bytes_ = 0;  // of all busy lanes
};

}  // namespace rollring
