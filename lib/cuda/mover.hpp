#pragma once

#include <memory>

#include "backend.hpp"
#include "gpu.hpp"

namespace rollring::cuda {

Result<std::unique_ptr<device::Mover>> make_mover(std::shared_ptr<const Gpu> gpu);

}  // namespace rollring::cuda
