#pragma once
// The GPU functions of this build: one table, so that lib/weights, lib/gather and extras/memory
// neither know nor link CUDA.

#include <memory>
#include <vector>

#include "backend.hpp"
#include "gather_device.hpp"
#include "physical_memory.hpp"
#include "rollring/error.hpp"

namespace rollring::device {

struct Gpus {
    // By their ordinals; empty if there is none.
    std::vector<GpuUuid> (*visible)() = nullptr;
    // Payload memory of this kind (none is automatic) for a GPU, and the GPU as mover. A GPU with
    // host memory registers each block, read-only if it is imported. no_gpu, unsupported.
    Result<Backend> (*open)(Device device, PayloadMemory kind) = nullptr;
    // no_gpu, unsupported, device_error.
    Result<std::unique_ptr<PhysicalMemory>> (*open_physical_memory)(Device device) = nullptr;
    // no_gpu, device_error.
    Result<std::unique_ptr<GatherDevice>> (*open_gather)(Device device) = nullptr;
};

// Defined by lib/cuda, also in a build without CUDA, or by a test with a device of its own.
const Gpus& gpus();

}  // namespace rollring::device
