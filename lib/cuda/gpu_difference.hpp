#pragma once
// Differences of tensors on a GPU, found and exchanged by its kernels.

#include <cstdint>
#include <memory>
#include <vector>

#include "difference.hpp"
#include "gpu.hpp"
#include "plan.hpp"

namespace rollring::cuda {

struct DeltaTuning {
    unsigned waves = 16;                                    // of blocks
    std::uint64_t launch_bytes = std::uint64_t{512} << 20;  // of a comparison: see Tuning
    // Of the time, for comparisons: with less than 1 the GPU has other work between bursts of this
    // many tiles, 128 MiB.
    double share = 1;
    std::uint64_t burst_tiles = 4096;
    // The least that is allocated for the list at once, if the GPU has it.
    std::uint64_t chunk_bytes = std::uint64_t{32} << 20;
    // An exchange that takes longer has failed, or its stream waits for something else.
    std::int64_t exchange_ms = 600'000;
};

// `parts`: the copies of each part, every one a view; their tensors' elements do not overlap.
Result<std::unique_ptr<device::Difference>> make_difference(
    std::shared_ptr<const Gpu> gpu, const std::vector<std::vector<device::CopyJob>>& parts,
    const DeltaTuning& tuning = {});

}  // namespace rollring::cuda
