// Assembles the GPU back ends of the weight channel.

#include <fmt/core.h>

#include <utility>

#include "backends.hpp"
#include "mover.hpp"
#include "payload.hpp"

namespace rollring {

Result<void> cuda::check_ticket(const Gpu& gpu, const device::BlockTicket& ticket,
                                PayloadMemory kind, std::uint64_t granularity) {
    const auto bad = [](std::string message) {
        return refused(Errc::bad_manifest, std::move(message));
    };
    if (ticket.memory != kind) {
        return bad(fmt::format("the publisher sent memory of kind {}, not {}",
                               static_cast<unsigned>(ticket.memory), static_cast<unsigned>(kind)));
    }
    if (ticket.bytes == 0 || ticket.bytes % granularity != 0) {
        return bad(fmt::format("the publisher sent a block of {} B, which is not a multiple of {}",
                               ticket.bytes, granularity));
    }
    std::size_t total = 0;
    gpu.api().cuDeviceTotalMem(&total, gpu.context().device());
    if (ticket.bytes > total) {
        return bad(fmt::format("the publisher sent a block of {} B, more than the {} B of GPU {}",
                               ticket.bytes, total, gpu.device().gpu));
    }
    return {};
}

Result<device::Backend> cuda::make_backend(Device device, PayloadMemory kind) {
    auto gpu = Gpu::open(device);
    if (!gpu) return std::unexpected(gpu.error());
    Result<std::unique_ptr<device::Memory>> memory = nullptr;
    switch (kind) {
        case PayloadMemory::automatic:
        case PayloadMemory::vmm:
            memory = make_vmm_memory(*gpu);
            break;
        case PayloadMemory::legacy_ipc:
            memory = make_ipc_memory(*gpu);
            break;
        case PayloadMemory::host:
            memory = make_registered_memory(*gpu, device::make_host_backend().memory);
            break;
        case PayloadMemory::direct:
            memory = make_direct_memory(*gpu);
            break;
    }
    if (!memory) return std::unexpected(memory.error());
    auto mover = make_mover(*gpu);
    if (!mover) return std::unexpected(mover.error());
    return device::Backend{std::move(*memory), std::move(*mover)};
}

}  // namespace rollring
