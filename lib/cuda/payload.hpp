#pragma once
// Payload memory that processes share, of the kinds that a GPU can copy from and to.

#include <memory>

#include "backend.hpp"
#include "gpu.hpp"

namespace rollring::cuda {

// Virtual memory of CUDA, passed as a descriptor. unsupported if the driver refuses to share it.
Result<std::unique_ptr<device::Memory>> make_vmm_memory(std::shared_ptr<const Gpu> gpu);

// cuMemAlloc with a CUDA IPC handle. Importers can write to it: the driver has no read-only import.
Result<std::unique_ptr<device::Memory>> make_ipc_memory(std::shared_ptr<const Gpu> gpu);

// The blocks of `host`, registered with CUDA.
Result<std::unique_ptr<device::Memory>> make_registered_memory(
    std::shared_ptr<const Gpu> gpu, std::unique_ptr<device::Memory> host);

// The trainer's own allocations, by their CUDA IPC handles. Blocks that it makes are as those of
// make_ipc_memory().
Result<std::unique_ptr<device::Memory>> make_direct_memory(std::shared_ptr<const Gpu> gpu);

// Checks of a ticket from another process that do not depend on the kind of memory.
Result<void> check_ticket(const Gpu& gpu, const device::BlockTicket& ticket, PayloadMemory kind,
                          std::uint64_t granularity);

}  // namespace rollring::cuda
