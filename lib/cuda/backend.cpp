// The GPU back ends of the weight channel, put together.

#include <fmt/format.h>

#include <utility>

#include "mover.hpp"
#include "payload.hpp"

namespace rollring {

Result<void> cuda::check_ticket(const Gpu& gpu, const weights::ChunkTicket& ticket,
                                PayloadMemory kind, std::uint64_t granularity) {
    const auto bad = [](std::string message) {
        return std::unexpected(Error{Errc::bad_manifest, 0, std::move(message)});
    };
    if (ticket.memory != kind) {
        return bad(fmt::format("the publisher sent memory of kind {}, not {}",
                               static_cast<unsigned>(ticket.memory), static_cast<unsigned>(kind)));
    }
    if (ticket.bytes == 0 || ticket.bytes % granularity != 0) {
        return bad(fmt::format("the publisher sent a chunk of {} B, which is no multiple of {}",
                               ticket.bytes, granularity));
    }
    std::size_t total = 0;
    gpu.api().cuDeviceTotalMem(&total, gpu.context().device());
    if (ticket.bytes > total) {
        return bad(fmt::format("the publisher sent a chunk of {} B, more than the {} B of GPU {}",
                               ticket.bytes, total, gpu.device().gpu));
    }
    return {};
}

Result<weights::Backend> weights::make_gpu_backend(Device device, PayloadMemory kind) {
    auto gpu = cuda::Gpu::open(device);
    if (!gpu) return std::unexpected(gpu.error());
    Result<std::unique_ptr<Memory>> memory = nullptr;
    switch (kind) {
        case PayloadMemory::automatic:
        case PayloadMemory::vmm:
            memory = cuda::make_vmm_memory(*gpu);
            break;
        case PayloadMemory::legacy_ipc:
            memory = cuda::make_ipc_memory(*gpu);
            break;
        case PayloadMemory::host:
            memory = cuda::make_registered_memory(*gpu, make_host_backend().memory);
            break;
    }
    if (!memory) return std::unexpected(memory.error());
    auto mover = cuda::make_mover(*gpu);
    if (!mover) return std::unexpected(mover.error());
    return Backend{std::move(*memory), std::move(*mover)};
}

}  // namespace rollring
