#pragma once
// The public functions of this folder: the entries of device::gpus(). No header of CUDA here; a
// build without CUDA has the same functions, which answer no_gpu (absent.cpp).

#include <memory>

#include "backend.hpp"
#include "gather_device.hpp"
#include "physical_memory.hpp"
#include "rollring/error.hpp"

namespace rollring::cuda {

// See device::Gpus.
Result<device::Backend> make_backend(Device device, PayloadMemory kind);
Result<std::unique_ptr<device::PhysicalMemory>> open_physical_memory(Device device);
Result<std::unique_ptr<device::GatherDevice>> open_gather(Device device);

}  // namespace rollring::cuda
