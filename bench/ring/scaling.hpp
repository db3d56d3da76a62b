#pragma once
// Many producers into one consumer, for as long as a run lasts: for `rollring-bench scaling`.

#include "workload.hpp"

namespace bench {

struct ManyPlan {
    std::uint32_t producers = 1;
    std::uint32_t n_tokens = 2048;
    std::uint64_t lane_bytes = 0;
    std::uint64_t soft_bytes = 0;                          // of a lane; 0: the library's choice
    std::uint64_t working_bytes = std::uint64_t{4} << 20;  // of all buffers of the bare hand-off
    double seconds = 0.3;
};

struct ManyMeasured {
    double tokens_per_s = 0;
    double least_share = 0;  // of the producer that got least, with 1 / producers being even
};

// Through a ring with a lane for each.
ManyMeasured measure_ring_many(const ManyPlan& plan, const Cpus& cpus);
// The bare hand-off with buffers for each, visited in turn: the most that one consumer core can
// read.
ManyMeasured measure_bare_many(const ManyPlan& plan, const Cpus& cpus);

}  // namespace bench
