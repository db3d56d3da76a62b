#pragma once

#include <memory>

#include "gpu.hpp"
#include "memory.hpp"

namespace rollring::cuda {

Result<std::unique_ptr<weights::Mover>> make_mover(std::shared_ptr<const Gpu> gpu);

}  // namespace rollring::cuda
