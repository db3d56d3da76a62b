// Allocations of cuMemAlloc for PayloadMemory::direct: found around an address, and opened by their
// CUDA IPC handles.

#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <utility>

#include "direct_memory.hpp"
#include "payload.hpp"

namespace rollring::cuda {
namespace {

using device::Allocation;
using device::AllocationHandle;

// A handle opens the whole block from which the driver cut an allocation.
constexpr std::uint64_t ipc_block_bytes = std::uint64_t{2} << 20;
static_assert(sizeof(CUipcMemHandle) == sizeof(AllocationHandle));

class GpuAllocations : public device::Allocations {
  public:
    explicit GpuAllocations(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
    Result<Allocation> find(const std::byte* address) override;
    std::optional<std::uint64_t> id_at(const std::byte* begin) override;
    Result<std::byte*> open(const AllocationHandle& handle, std::uint64_t bytes) override;
    void close(std::byte* begin) override;
    std::uint64_t bytes_most() override;

  private:
    [[nodiscard]] Error error_of(CUresult result, std::string_view what) const {
        return cuda_error(result, fmt::format("GPU {}: cannot {}", gpu_->device().gpu, what));
    }
    [[nodiscard]] Result<void> check_opened(CUdeviceptr address, std::uint64_t bytes) const;

    std::shared_ptr<const Gpu> gpu_;
};

Result<Allocation> GpuAllocations::find(const std::byte* address) {
    const Context::Scope scope(gpu_->context());
    const Driver& api = gpu_->api();
    const auto at = std::bit_cast<CUdeviceptr>(address);
    unsigned capable = 0;
    CUresult result =
        api.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at);
    if (result != CUDA_SUCCESS || capable == 0) {
        return refused(Errc::unsupported,
                       "its memory has no CUDA IPC handle: it is not of cudaMalloc, but of "
                       "expandable segments (PYTORCH_CUDA_ALLOC_CONF), a memory domain or saver, a "
                       "memory pool, or pinned; allocate it by cudaMalloc, or leave direct out");
    }
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    result = api.cuMemGetAddressRange(&begin, &bytes, at);
    if (result != CUDA_SUCCESS) return std::unexpected(error_of(result, "find an allocation"));
    if (begin % ipc_block_bytes != 0) {
        return refused(Errc::unsupported,
                       fmt::format("its allocation of {} B begins within a block of 2 MiB, whose "
                                   "other parts a CUDA IPC handle would expose; allocate it in "
                                   "units of 2 MiB, as torch does, or leave direct out",
                                   bytes));
    }
    Allocation found{.begin = std::bit_cast<std::byte*>(begin), .bytes = bytes};
    CUipcMemHandle handle{};
    result = api.cuIpcGetMemHandle(&handle, begin);
    if (result != CUDA_SUCCESS) {
        Error error = error_of(result, "get a CUDA IPC handle");
        if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) {
            error.code = Errc::unsupported;
        }
        return std::unexpected(std::move(error));
    }
    std::memcpy(found.handle.data(), &handle, sizeof handle);
    const auto id = id_at(found.begin);
    if (!id) return refused(Errc::device_error, "the driver does not number its allocation");
    found.id = *id;
    return found;
}

std::optional<std::uint64_t> GpuAllocations::id_at(const std::byte* begin) {
    const Context::Scope scope(gpu_->context());
    unsigned long long id = 0;
    const CUresult result = gpu_->api().cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                                              std::bit_cast<CUdeviceptr>(begin));
    if (result != CUDA_SUCCESS) return {};
    return id;
}

Result<void> GpuAllocations::check_opened(CUdeviceptr address, std::uint64_t bytes) const {
    CUdeviceptr begin = 0;
    std::size_t there = 0;
    const CUresult result = gpu_->api().cuMemGetAddressRange(&begin, &there, address);
    if (result != CUDA_SUCCESS) {
        return std::unexpected(error_of(result, "learn the extent of an allocation"));
    }
    if (bytes <= there - (address - begin)) return {};
    return refused(Errc::bad_manifest,
                   fmt::format("the publisher's CUDA IPC handle is for {} B and not for {}",
                               there - (address - begin), bytes));
}

Result<std::byte*> GpuAllocations::open(const AllocationHandle& given, std::uint64_t bytes) {
    const Context::Scope scope(gpu_->context());
    CUipcMemHandle handle{};
    std::memcpy(&handle, given.data(), sizeof handle);
    CUdeviceptr address = 0;
    const CUresult result =
        gpu_->api().cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        Error error = error_of(result, fmt::format("open the CUDA IPC handle of {} B of the "
                                                   "trainer's memory",
                                                   bytes));
        if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS) {
            error.code = Errc::no_peer_access;
        }
        if (result == CUDA_ERROR_INVALID_CONTEXT) {
            error.code = Errc::unsupported;
            error.message += "; trainer and engine must be two processes";
        }
        return std::unexpected(std::move(error));
    }
    if (auto there = check_opened(address, bytes); !there) {
        gpu_->api().cuIpcCloseMemHandle(address);
        return std::unexpected(there.error());
    }
    return std::bit_cast<std::byte*>(address);
}

void GpuAllocations::close(std::byte* begin) {
    const Context::Scope scope(gpu_->context());
    gpu_->api().cuIpcCloseMemHandle(std::bit_cast<CUdeviceptr>(begin));
}

std::uint64_t GpuAllocations::bytes_most() {
    std::size_t total = 0;
    gpu_->api().cuDeviceTotalMem(&total, gpu_->context().device());
    return total;
}

}  // namespace

Result<std::unique_ptr<device::Memory>> make_direct_memory(std::shared_ptr<const Gpu> gpu) {
    auto own = make_ipc_memory(gpu);
    if (!own) return own;
    return device::make_direct_memory(std::make_shared<GpuAllocations>(std::move(gpu)),
                                      std::move(*own));
}

}  // namespace rollring::cuda
