#pragma once
// What this folder makes, for whoever puts rollring together (lib/wiring). No header of CUDA here;
// a build without CUDA has the same functions, which answer no_gpu (absent.cpp).

#include <memory>

#include "backend.hpp"
#include "gather_device.hpp"
#include "physical_memory.hpp"
#include "rollring/error.hpp"

namespace rollring::cuda {

// make_backend and visible_gpus, as a table.
const device::Gpus& gpus();

// See device::Gpus::open.
Result<device::Backend> make_backend(Device device, PayloadMemory kind);

// no_gpu, unsupported, device_error.
Result<std::unique_ptr<device::PhysicalMemory>> open_physical_memory(Device device);

// no_gpu, device_error.
Result<std::unique_ptr<device::GatherDevice>> open_gather(Device device);

}  // namespace rollring::cuda
