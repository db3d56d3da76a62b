// Blocks of ordinary device memory with a CUDA IPC handle, if virtual memory is refused. Each is an
// allocation of its own, in units of 2 MiB: a handle opens the whole block from which the driver
// cut an allocation, so smaller ones would expose a neighbour's bytes, too.

#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <utility>

#include "payload.hpp"
#include "round_up.hpp"

namespace rollring::cuda {
namespace {

using device::BlockTicket;
using device::Fd;
using device::SharedBlock;

constexpr std::uint64_t block_bytes = std::uint64_t{2} << 20;
static_assert(sizeof(CUipcMemHandle) == sizeof(BlockTicket::handle));

class IpcBlock : public SharedBlock {
  public:
    IpcBlock(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes)
        : gpu_(std::move(gpu)), ticket_{PayloadMemory::legacy_ipc, bytes, {}} {}
    IpcBlock(const IpcBlock&) = delete;
    IpcBlock& operator=(const IpcBlock&) = delete;
    ~IpcBlock() override {
        if (address_ == 0) return;
        const Context::Scope scope(gpu_->context());
        if (imported_) {
            gpu_->api().cuIpcCloseMemHandle(address_);
        } else {
            gpu_->api().cuMemFree(address_);
        }
    }

    [[nodiscard]] std::byte* data() const override { return std::bit_cast<std::byte*>(address_); }
    [[nodiscard]] BlockTicket ticket() const override { return ticket_; }
    [[nodiscard]] int fd() const override { return -1; }

    Result<void> create();
    Result<void> open(const BlockTicket& ticket);

  private:
    [[nodiscard]] Error error_of(CUresult result, std::string_view what) const {
        return cuda_error(result, fmt::format("GPU {}: cannot {} {} B of device memory",
                                              gpu_->device().gpu, what, ticket_.bytes));
    }

    std::shared_ptr<const Gpu> gpu_;
    BlockTicket ticket_;
    CUdeviceptr address_ = 0;
    bool imported_ = false;
};

Result<void> IpcBlock::create() {
    const Driver& api = gpu_->api();
    CUresult result = api.cuMemAlloc(&address_, ticket_.bytes);
    if (result != CUDA_SUCCESS) {
        address_ = 0;
        return std::unexpected(error_of(result, "allocate"));
    }
    CUipcMemHandle handle{};
    result = api.cuIpcGetMemHandle(&handle, address_);
    if (result != CUDA_SUCCESS) {
        Error error = error_of(result, "get a CUDA IPC handle for");
        if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) {
            error.code = Errc::unsupported;
            error.message += "; PayloadMemory::host works everywhere";
        }
        return std::unexpected(std::move(error));
    }
    std::memcpy(ticket_.handle.data(), &handle, sizeof handle);
    CUstream stream = gpu_->stream({});
    result = api.cuMemsetD8Async(address_, 0, ticket_.bytes, stream);
    if (result == CUDA_SUCCESS) result = api.cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS) return std::unexpected(error_of(result, "zero"));
    return {};
}

Result<void> IpcBlock::open(const BlockTicket& ticket) {
    ticket_ = ticket;
    imported_ = true;
    CUipcMemHandle handle{};
    std::memcpy(&handle, ticket.handle.data(), sizeof handle);
    const Driver& api = gpu_->api();
    CUresult result = api.cuIpcOpenMemHandle(&address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        address_ = 0;
        Error error = error_of(result, "open the CUDA IPC handle of");
        if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS) {
            error.code = Errc::no_peer_access;
        }
        return std::unexpected(std::move(error));
    }
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    result = api.cuMemGetAddressRange(&start, &bytes, address_);
    if (result != CUDA_SUCCESS) return std::unexpected(error_of(result, "learn the extent of"));
    if (address_ - start + ticket.bytes > bytes) {
        return refused(Errc::bad_manifest,
                       fmt::format("the publisher's CUDA IPC handle is for {} B and not for {}",
                                   bytes - (address_ - start), ticket.bytes));
    }
    return {};
}

class IpcMemory : public device::Memory {
  public:
    explicit IpcMemory(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}

    Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) override {
        if (bytes == 0 || bytes > std::uint64_t{1} << 48) {
            return refused(Errc::invalid_argument, fmt::format("a block of {} B", bytes));
        }
        const Context::Scope scope(gpu_->context());
        auto block = std::make_unique<IpcBlock>(gpu_, round_up(bytes, block_bytes));
        if (auto done = block->create(); !done) return std::unexpected(done.error());
        return block;
    }

    Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) override {
        static_cast<void>(fd);  // this kind has no descriptor
        auto done = check_ticket(*gpu_, ticket, PayloadMemory::legacy_ipc, block_bytes);
        if (!done) return std::unexpected(done.error());
        const Context::Scope scope(gpu_->context());
        auto block = std::make_unique<IpcBlock>(gpu_, ticket.bytes);
        done = block->open(ticket);
        if (!done) return std::unexpected(done.error());
        return block;
    }

  private:
    std::shared_ptr<const Gpu> gpu_;
};

}  // namespace

Result<std::unique_ptr<device::Memory>> make_ipc_memory(std::shared_ptr<const Gpu> gpu) {
    return std::make_unique<IpcMemory>(std::move(gpu));
}

}  // namespace rollring::cuda
