#pragma once
// See device::GatherDevice.

#include <memory>

#include "gather_device.hpp"
#include "gpu.hpp"

namespace rollring::cuda {

struct GatherTuning {
    std::uint64_t part_bytes = 0;  // 0: by the bytes to read
    std::uint64_t blocks = 0;      // the most; 0: as many as fit on the GPU
};

std::unique_ptr<device::GatherDevice> make_gather(std::shared_ptr<const Gpu> gpu,
                                                  const GatherTuning& tuning = {});

}  // namespace rollring::cuda
