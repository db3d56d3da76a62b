// Chunks of CUDA virtual memory. Physical memory, an address range and a mapping come and go
// together here; a half-made chunk is taken down by its destructor like a whole one.

#include <fcntl.h>
#include <fmt/format.h>

#include <bit>
#include <utility>

#include "payload.hpp"

namespace rollring::cuda {
namespace {

using weights::Chunk;
using weights::ChunkTicket;
using weights::Fd;

constexpr const char* take_legacy =
    "; PayloadMemory::legacy_ipc shares memory in another way (allow_legacy_ipc lets automatic "
    "fall back to it)";

class VmmChunk : public Chunk {
  public:
    VmmChunk(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes)
        : gpu_(std::move(gpu)), bytes_(bytes) {}
    VmmChunk(const VmmChunk&) = delete;
    VmmChunk& operator=(const VmmChunk&) = delete;
    ~VmmChunk() override;

    [[nodiscard]] std::byte* data() const override { return std::bit_cast<std::byte*>(address_); }
    [[nodiscard]] ChunkTicket ticket() const override { return {PayloadMemory::vmm, bytes_, {}}; }
    [[nodiscard]] int fd() const override { return fd_.get(); }

    Result<void> create(const CUmemAllocationProp& properties);
    Result<void> take(Fd fd);
    Result<void> map(std::uint64_t granularity, CUmemAccess_flags access);
    Result<void> zero();

  private:
    [[nodiscard]] Error failed(CUresult result, std::string_view what) const;
    [[nodiscard]] Result<void> check_reach() const;

    std::shared_ptr<const Gpu> gpu_;
    std::uint64_t bytes_;
    CUmemGenericAllocationHandle memory_ = 0;
    bool has_memory_ = false;
    CUdeviceptr address_ = 0;
    bool mapped_ = false;
    Fd fd_;
};

VmmChunk::~VmmChunk() {
    const Context::Scope scope(gpu_->context());
    const Driver& api = gpu_->api();
    if (mapped_) api.cuMemUnmap(address_, bytes_);
    if (address_ != 0) api.cuMemAddressFree(address_, bytes_);
    if (has_memory_) api.cuMemRelease(memory_);
}

Error VmmChunk::failed(CUresult result, std::string_view what) const {
    const bool refused = result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED;
    Error error = cuda_error(result, fmt::format("GPU {}: cannot {} {} B of CUDA virtual memory",
                                                 gpu_->device().gpu, what, bytes_));
    if (refused) {
        error.code = Errc::unsupported;
        error.message += take_legacy;
    } else if (error.code == Errc::out_of_device_memory) {
        std::size_t free = 0;
        std::size_t total = 0;
        gpu_->api().cuMemGetInfo(&free, &total);
        error.message += fmt::format("; {} B are free", free);
    }
    return error;
}

Result<void> VmmChunk::create(const CUmemAllocationProp& properties) {
    const Driver& api = gpu_->api();
    CUresult result = api.cuMemCreate(&memory_, bytes_, &properties, 0);
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "allocate"));
    has_memory_ = true;
    int fd = -1;
    result =
        api.cuMemExportToShareableHandle(&fd, memory_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "export"));
    fd_ = Fd(fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);  // the driver does not promise it
    return {};
}

// The publisher's descriptor becomes memory; it is not needed after that.
Result<void> VmmChunk::take(Fd fd) {
    auto* handle = std::bit_cast<void*>(static_cast<std::intptr_t>(fd.get()));
    const CUresult result = gpu_->api().cuMemImportFromShareableHandle(
        &memory_, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "import"));
    has_memory_ = true;
    return check_reach();
}

// Where the driver tells us on which GPU the memory lies: can ours read it?
Result<void> VmmChunk::check_reach() const {
    const Driver& api = gpu_->api();
    CUmemAllocationProp properties{};
    if (api.cuMemGetAllocationPropertiesFromHandle(&properties, memory_) != CUDA_SUCCESS ||
        properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return {};
    }
    CUdevice owner = 0;
    if (api.cuDeviceGet(&owner, properties.location.id) != CUDA_SUCCESS ||
        owner == gpu_->context().device()) {
        return {};
    }
    int reachable = 0;
    const CUresult result = api.cuDeviceCanAccessPeer(&reachable, gpu_->context().device(), owner);
    if (result != CUDA_SUCCESS || reachable != 0) return {};
    return std::unexpected(Error{
        Errc::no_peer_access, 0,
        fmt::format("GPU {} cannot read the memory of GPU {}, where the publisher keeps its slots; "
                    "attach to the publisher of the same GPU, or let it use PayloadMemory::host",
                    gpu_->device().gpu, properties.location.id)});
}

Result<void> VmmChunk::map(std::uint64_t granularity, CUmemAccess_flags access) {
    const Driver& api = gpu_->api();
    CUresult result = api.cuMemAddressReserve(&address_, bytes_, granularity, 0, 0);
    if (result != CUDA_SUCCESS) {
        address_ = 0;
        return std::unexpected(failed(result, "reserve addresses for"));
    }
    result = api.cuMemMap(address_, bytes_, 0, memory_, 0);
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "map"));
    mapped_ = true;
    CUmemAccessDesc description{};
    description.location = {};
    description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    description.location.id = gpu_->context().device();
    description.flags = access;
    result = api.cuMemSetAccess(address_, bytes_, &description, 1);
    if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS) {
        Error error = failed(result, "reach another GPU's");
        error.code = Errc::no_peer_access;
        return std::unexpected(std::move(error));
    }
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "get access to"));
    return {};
}

Result<void> VmmChunk::zero() {
    CUstream stream = gpu_->stream({});
    CUresult result = gpu_->api().cuMemsetD8Async(address_, 0, bytes_, stream);
    if (result == CUDA_SUCCESS) result = gpu_->api().cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "zero"));
    return {};
}

class VmmMemory : public weights::Memory {
  public:
    VmmMemory(std::shared_ptr<const Gpu> gpu, const CUmemAllocationProp& properties,
              std::uint64_t granularity)
        : gpu_(std::move(gpu)), properties_(properties), granularity_(granularity) {}

    [[nodiscard]] PayloadMemory kind() const override { return PayloadMemory::vmm; }
    Result<std::unique_ptr<Chunk>> make(std::uint64_t bytes) override;
    Result<std::unique_ptr<Chunk>> import(const ChunkTicket& ticket, Fd fd) override;

  private:
    std::shared_ptr<const Gpu> gpu_;
    CUmemAllocationProp properties_;
    std::uint64_t granularity_;
};

Result<std::unique_ptr<Chunk>> VmmMemory::make(std::uint64_t bytes) {
    if (bytes == 0 || bytes > std::uint64_t{1} << 48) {
        return std::unexpected(
            Error{Errc::invalid_argument, 0, fmt::format("a chunk of {} B", bytes)});
    }
    bytes = (bytes + granularity_ - 1) / granularity_ * granularity_;
    const Context::Scope scope(gpu_->context());
    auto chunk = std::make_unique<VmmChunk>(gpu_, bytes);
    auto done = chunk->create(properties_);
    if (done) done = chunk->map(granularity_, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (done) done = chunk->zero();
    if (!done) return std::unexpected(done.error());
    return chunk;
}

Result<std::unique_ptr<Chunk>> VmmMemory::import(const ChunkTicket& ticket, Fd fd) {
    auto checked = check_ticket(*gpu_, ticket, PayloadMemory::vmm, granularity_);
    if (!checked) return std::unexpected(checked.error());
    if (!fd) {
        return std::unexpected(Error{Errc::bad_manifest, 0,
                                     "the publisher sent a chunk of CUDA virtual memory without "
                                     "its descriptor"});
    }
    const Context::Scope scope(gpu_->context());
    auto chunk = std::make_unique<VmmChunk>(gpu_, ticket.bytes);
    auto done = chunk->take(std::move(fd));
    if (done) done = chunk->map(granularity_, CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!done) return std::unexpected(done.error());
    return chunk;
}

}  // namespace

Result<std::unique_ptr<weights::Memory>> make_vmm_memory(std::shared_ptr<const Gpu> gpu) {
    const auto has = [&](CUdevice_attribute which) { return gpu->attribute(which) != 0; };
    if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
        !has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
        return std::unexpected(
            Error{Errc::unsupported, 0,
                  fmt::format("GPU {}: its driver cannot share CUDA virtual memory as a file "
                              "descriptor{}",
                              gpu->device().gpu, take_legacy)});
    }
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu->context().device();
    if (has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
        properties.allocFlags.gpuDirectRDMACapable = 1;
    }
    const Context::Scope scope(gpu->context());
    std::size_t granularity = 0;
    const CUresult result = gpu->api().cuMemGetAllocationGranularity(
        &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS || granularity == 0) {
        return std::unexpected(cuda_error(
            result, fmt::format("GPU {}: cannot learn the granularity of CUDA virtual memory",
                                gpu->device().gpu)));
    }
    return std::make_unique<VmmMemory>(std::move(gpu), properties, granularity);
}

}  // namespace rollring::cuda
