#include "vmm.hpp"

#include <fcntl.h>

#include <bit>
#include <utility>

namespace rollring::cuda {

using device::MemoryHandle;

namespace {

constexpr CUmemAllocationHandleType descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUdeviceptr pointer(const std::byte* address) {
    return reinterpret_cast<CUdeviceptr>(address);
}

CUmemGenericAllocationHandle driver_handle(MemoryHandle memory) {
    return std::to_underlying(memory);
}

Driven<void> done(CUresult result, std::string_view step) {
    if (result == CUDA_SUCCESS) return {};
    return std::unexpected(Refusal{result, step});
}

}  // namespace

Vmm::Vmm(const Context& context, Sharing sharing) : context_(&context) {
    kind_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind_.location.id = context.device();
    if (sharing != Sharing::none) kind_.requestedHandleTypes = descriptor;
    // Chunks replace those of another allocator (MemoryDomain::adopt), which may have had this
    // flag.
    int remote = 0;
    const CUresult asked = api().cuDeviceGetAttribute(
        &remote, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, context.device());
    if (asked == CUDA_SUCCESS && remote != 0) kind_.allocFlags.gpuDirectRDMACapable = 1;
}

Driven<Vmm> Vmm::open(const Context& context, Sharing sharing) {
    Vmm made(context, sharing);
    const Context::Scope scope(context);
    std::size_t bytes = 0;
    const CUresult result = context.api().cuMemGetAllocationGranularity(
        &bytes, &made.kind_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS || bytes == 0) {
        return std::unexpected(Refusal{result, "learn the granularity of"});
    }
    made.granularity_bytes_ = bytes;
    return made;
}

Driven<std::byte*> Vmm::reserve(std::uint64_t bytes) const {
    const Context::Scope scope(*context_);
    CUdeviceptr address = 0;
    const CUresult result = api().cuMemAddressReserve(&address, bytes, granularity_bytes_, 0, 0);
    if (result != CUDA_SUCCESS) return std::unexpected(Refusal{result, "reserve addresses for"});
    return std::bit_cast<std::byte*>(address);
}

Driven<void> Vmm::unreserve(std::byte* address, std::uint64_t bytes) const {
    const Context::Scope scope(*context_);
    return done(api().cuMemAddressFree(pointer(address), bytes), "free the addresses of");
}

Driven<MemoryHandle> Vmm::create(std::uint64_t bytes) const {
    const Context::Scope scope(*context_);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = api().cuMemCreate(&handle, bytes, &kind_, 0);
    if (result != CUDA_SUCCESS) return std::unexpected(Refusal{result, "allocate"});
    return MemoryHandle{handle};
}

Driven<MemoryHandle> Vmm::import(const Fd& fd) const {
    const Context::Scope scope(*context_);
    CUmemGenericAllocationHandle handle = 0;
    auto* shared = std::bit_cast<void*>(static_cast<std::intptr_t>(fd.get()));
    const CUresult result = api().cuMemImportFromShareableHandle(&handle, shared, descriptor);
    if (result != CUDA_SUCCESS) return std::unexpected(Refusal{result, "import"});
    return MemoryHandle{handle};
}

Driven<Fd> Vmm::export_descriptor(MemoryHandle memory) const {
    const Context::Scope scope(*context_);
    int fd = -1;
    const CUresult result =
        api().cuMemExportToShareableHandle(&fd, driver_handle(memory), descriptor, 0);
    if (result != CUDA_SUCCESS) return std::unexpected(Refusal{result, "export"});
    fcntl(fd, F_SETFD, FD_CLOEXEC);  // the driver does not promise it
    return Fd(fd);
}

Driven<void> Vmm::destroy(MemoryHandle memory) const {
    const Context::Scope scope(*context_);
    return done(api().cuMemRelease(driver_handle(memory)), "let go of");
}

std::optional<int> Vmm::gpu_of(MemoryHandle memory) const {
    const Context::Scope scope(*context_);
    CUmemAllocationProp found{};
    if (api().cuMemGetAllocationPropertiesFromHandle(&found, driver_handle(memory)) !=
            CUDA_SUCCESS ||
        found.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return {};
    }
    return found.location.id;
}

Driven<void> Vmm::map(std::byte* address, std::uint64_t bytes, MemoryHandle memory,
                      CUmemAccess_flags access) const {
    const Context::Scope scope(*context_);
    CUresult result = api().cuMemMap(pointer(address), bytes, 0, driver_handle(memory), 0);
    if (result != CUDA_SUCCESS) return std::unexpected(Refusal{result, mapping});
    const CUmemAccessDesc description{kind_.location, access};
    result = api().cuMemSetAccess(pointer(address), bytes, &description, 1);
    if (result == CUDA_SUCCESS) return {};
    api().cuMemUnmap(pointer(address), bytes);
    return std::unexpected(Refusal{result, giving_access});
}

Driven<void> Vmm::unmap(std::byte* address, std::uint64_t bytes) const {
    const Context::Scope scope(*context_);
    return done(api().cuMemUnmap(pointer(address), bytes), "unmap");
}

}  // namespace rollring::cuda
