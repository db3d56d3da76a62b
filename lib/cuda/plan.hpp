#pragma once
// A plan's jobs as tables in device memory, run by one kernel launch.

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.hpp"
#include "gpu.hpp"

namespace rollring::cuda {

// Measured values; tests and pack_rate try others.
struct Tuning {
    std::uint64_t tile_bytes = 8192;  // at the tensor's side, a multiple of 256
    // Of blocks, as many as fit on the GPU each; 0: a block for each tile. The GPU starts blocks in
    // order, so that the addresses that are used at once are near each other.
    unsigned waves = 0;
    bool over_link = false;  // unpacks from another GPU's memory
    // Of the tensors, for a launch: other streams have their turn between two.
    std::uint64_t launch_bytes = std::uint64_t{512} << 20;
};

Result<std::unique_ptr<device::CopyPlan>> make_plan(std::shared_ptr<const Gpu> gpu,
                                                    const std::vector<device::CopyJob>& jobs,
                                                    const Tuning& tuning = {});

}  // namespace rollring::cuda
