#pragma once
// How much memory a ring takes: what create_ring() chooses where nothing is given, and what a run
// of given lengths needs.

#include <cstdint>
#include <string>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/export.hpp"
#include "rollring/ring.hpp"

namespace rollring {

// What a ring with these options gets on this machine.
struct RingPlan {
    std::uint64_t lane_bytes;
    std::uint64_t spill_bytes;
    std::uint64_t taken_bytes;  // with every lane in use, and a trainer; the spill hardly used
    std::string why;            // how sizes that were not given were chosen; empty where all were
    std::string warning;        // not all lanes can be had at once; empty where they can
};
ROLLRING_API Result<RingPlan> plan_ring(const RingOptions& options);

// A run as it is expected.
struct RunShape {
    std::uint32_t producers = 64;
    std::uint32_t group_size = 16;
    std::uint32_t tokens = 131'072;   // of the longest rollout, its prompt included
    std::uint32_t token_bytes = 9;    // token_ids (4), logprobs (4), loss_mask (1)
    std::uint32_t batch_groups = 16;  // that the trainer takes at once
};

// What a ring needs so that such a run does not wait for memory.
struct RunSizes {
    std::uint64_t record_bytes;
    std::uint64_t lane_bytes;
    std::uint64_t lanes_bytes;  // of all lanes together
    std::uint64_t spill_bytes;
    std::uint64_t fixed_bytes;     // control pages, the board of groups, released-bits
    std::uint64_t memory_bytes;    // all of it, in /dev/shm
    std::vector<std::string> why;  // the arithmetic, a line for each number
};
ROLLRING_API Result<RunSizes> size_run(const RunShape& shape);

}  // namespace rollring
