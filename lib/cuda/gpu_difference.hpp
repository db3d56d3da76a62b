#pragma once
// Differences of tensors on a GPU, found and exchanged by its kernels.

#include <cstdint>
#include <memory>
#include <vector>

#include "difference.hpp"
#include "gpu.hpp"
#include "plan.hpp"

namespace rollring::cuda {

// `parts`: the copies of each part, every one a view, whose tensors' elements do not overlap.
Result<std::unique_ptr<device::Difference>> make_difference(
    std::shared_ptr<const Gpu> gpu, const std::vector<std::vector<device::CopyJob>>& parts,
    unsigned waves = 4);

}  // namespace rollring::cuda
