// Blocks of CUDA virtual memory: the publisher's descriptor is physical memory, which a subscriber
// maps read-only. The destructor takes a half-made block down like a complete one.

#include <fmt/core.h>

#include <optional>
#include <utility>

#include "payload.hpp"
#include "round_up.hpp"
#include "vmm.hpp"

namespace rollring::cuda {
namespace {

using device::BlockTicket;
using device::MemoryHandle;
using device::SharedBlock;

constexpr const char* take_legacy =
    "; PayloadMemory::legacy_ipc shares memory in another way (allow_legacy_ipc lets automatic "
    "fall back to it)";

class VmmBlock : public SharedBlock {
  public:
    VmmBlock(std::shared_ptr<const Gpu> gpu, const Vmm& vmm, std::uint64_t bytes)
        : gpu_(std::move(gpu)), vmm_(vmm), bytes_(bytes) {}
    VmmBlock(const VmmBlock&) = delete;
    VmmBlock& operator=(const VmmBlock&) = delete;
    ~VmmBlock() override;

    [[nodiscard]] std::byte* data() const override { return address_; }
    [[nodiscard]] BlockTicket ticket() const override { return {PayloadMemory::vmm, bytes_, {}}; }
    [[nodiscard]] int fd() const override { return fd_.get(); }

    Result<void> create();
    // The publisher's memory.
    Result<void> import(const Fd& fd);
    Result<void> map(CUmemAccess_flags access);
    Result<void> zero();

  private:
    [[nodiscard]] Error error_of(const Refusal& refusal) const;
    [[nodiscard]] Result<void> check_reach() const;

    std::shared_ptr<const Gpu> gpu_;
    Vmm vmm_;
    std::uint64_t bytes_;
    std::optional<MemoryHandle> memory_;
    std::byte* address_ = nullptr;
    bool mapped_ = false;
    Fd fd_;
};

VmmBlock::~VmmBlock() {
    // Resources that the driver refuses to release end with the process.
    if (mapped_) static_cast<void>(vmm_.unmap(address_, bytes_));
    if (address_ != nullptr) static_cast<void>(vmm_.unreserve(address_, bytes_));
    if (memory_) static_cast<void>(vmm_.destroy(*memory_));
}

Error VmmBlock::error_of(const Refusal& refusal) const {
    const auto [result, step] = refusal;
    Error error = cuda_error(result, fmt::format("GPU {}: cannot {} {} B of CUDA virtual memory",
                                                 gpu_->device().gpu, step, bytes_));
    if (result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED) {
        error.code = Errc::unsupported;
        error.message += take_legacy;
    } else if (error.code == Errc::out_of_device_memory) {
        const Context::Scope scope(gpu_->context());
        std::size_t free = 0;
        std::size_t total = 0;
        gpu_->api().cuMemGetInfo(&free, &total);
        error.message += fmt::format("; {} B are free", free);
    } else if (step == Vmm::giving_access && (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ||
                                              result == CUDA_ERROR_TOO_MANY_PEERS)) {
        error.code = Errc::no_peer_access;
    }
    return error;
}

Result<void> VmmBlock::create() {
    const auto memory = vmm_.create(bytes_);
    if (!memory) return std::unexpected(error_of(memory.error()));
    memory_ = *memory;
    auto fd = vmm_.export_descriptor(*memory_);
    if (!fd) return std::unexpected(error_of(fd.error()));
    fd_ = std::move(*fd);
    return {};
}

Result<void> VmmBlock::import(const Fd& fd) {
    const auto memory = vmm_.import(fd);
    if (!memory) return std::unexpected(error_of(memory.error()));
    memory_ = *memory;
    return check_reach();
}

// If the driver tells the memory's GPU: whether ours can read it.
Result<void> VmmBlock::check_reach() const {
    const Driver& api = gpu_->api();
    const auto lies_on = vmm_.gpu_of(*memory_);
    CUdevice owner = 0;
    if (!lies_on || api.cuDeviceGet(&owner, *lies_on) != CUDA_SUCCESS ||
        owner == gpu_->context().device()) {
        return {};
    }
    int reachable = 0;
    const CUresult result = api.cuDeviceCanAccessPeer(&reachable, gpu_->context().device(), owner);
    if (result != CUDA_SUCCESS || reachable != 0) return {};
    return refused(
        Errc::no_peer_access,
        fmt::format("GPU {} cannot read the memory of GPU {}, where the publisher keeps its slots; "
                    "attach to the publisher of the same GPU, or let it use PayloadMemory::host",
                    gpu_->device().gpu, *lies_on));
}

Result<void> VmmBlock::map(CUmemAccess_flags access) {
    const auto address = vmm_.reserve(bytes_);
    if (!address) return std::unexpected(error_of(address.error()));
    address_ = *address;
    const auto mapped = vmm_.map(address_, bytes_, *memory_, access);
    if (!mapped) return std::unexpected(error_of(mapped.error()));
    mapped_ = true;
    return {};
}

Result<void> VmmBlock::zero() {
    const Context::Scope scope(gpu_->context());
    CUstream stream = gpu_->stream({});
    const auto at = reinterpret_cast<CUdeviceptr>(address_);
    CUresult result = gpu_->api().cuMemsetD8Async(at, 0, bytes_, stream);
    if (result == CUDA_SUCCESS) result = gpu_->api().cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS) return std::unexpected(error_of({result, "zero"}));
    return {};
}

class VmmMemory : public device::Memory {
  public:
    VmmMemory(std::shared_ptr<const Gpu> gpu, const Vmm& vmm) : gpu_(std::move(gpu)), vmm_(vmm) {}

    Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) override;
    Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) override;

  private:
    std::shared_ptr<const Gpu> gpu_;
    Vmm vmm_;
};

Result<std::unique_ptr<SharedBlock>> VmmMemory::make(std::uint64_t bytes) {
    if (bytes == 0 || bytes > std::uint64_t{1} << 48) {
        return refused(Errc::invalid_argument, fmt::format("a block of {} B", bytes));
    }
    const std::uint64_t unit = vmm_.granularity_bytes();
    auto block = std::make_unique<VmmBlock>(gpu_, vmm_, round_up(bytes, unit));
    auto done = block->create();
    if (done) done = block->map(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (done) done = block->zero();
    if (!done) return std::unexpected(done.error());
    return block;
}

Result<std::unique_ptr<SharedBlock>> VmmMemory::import(const BlockTicket& ticket, Fd fd) {
    auto checked = check_ticket(*gpu_, ticket, PayloadMemory::vmm, vmm_.granularity_bytes());
    if (!checked) return std::unexpected(checked.error());
    if (!fd) {
        return refused(Errc::bad_manifest,
                       "the publisher sent a block of CUDA virtual memory without "
                       "its descriptor");
    }
    auto block = std::make_unique<VmmBlock>(gpu_, vmm_, ticket.bytes);
    auto done = block->import(fd);
    if (done) done = block->map(CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!done) return std::unexpected(done.error());
    return block;
}

}  // namespace

Result<std::unique_ptr<device::Memory>> make_vmm_memory(std::shared_ptr<const Gpu> gpu) {
    const auto has = [&](CUdevice_attribute which) { return gpu->attribute(which) != 0; };
    if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
        !has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
        return refused(Errc::unsupported,
                       fmt::format("GPU {}: its driver cannot share CUDA virtual memory as a file "
                                   "descriptor{}",
                                   gpu->device().gpu, take_legacy));
    }
    const auto vmm = Vmm::open(gpu->context(), Vmm::Sharing::by_descriptor);
    if (!vmm) {
        return std::unexpected(
            cuda_error(vmm.error().result, fmt::format("GPU {}: cannot {} CUDA virtual memory",
                                                       gpu->device().gpu, vmm.error().step)));
    }
    return std::make_unique<VmmMemory>(std::move(gpu), *vmm);
}

}  // namespace rollring::cuda
