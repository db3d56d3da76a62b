#pragma once
// rollring as its users use it, as a transport of the identical work.

#include "workload.hpp"

namespace bench {

struct RingTransport {
    std::uint32_t lanes = 1;  // one of them is used
    std::uint64_t lane_bytes = std::uint64_t{64} << 20;
    std::uint64_t soft_bytes = 0;
    bool sleeping = false;   // the consumer waits with wait() instead of spinning on poll()
    std::uint32_t taps = 0;  // processes that look at the ring ten times a second
};

// In a ring that is made anew for each run, so that nothing is left. Figures: 1 laps_soft, 2
// laps_full, 3 waits, 4 bytes of a record in the lane.
Measured measure_ring(const RingTransport& transport, const Plan& plan, const Cpus& cpus);

}  // namespace bench
