// Chunks of ordinary device memory with a CUDA IPC handle, for where virtual memory is refused.
// Each is an allocation of its own, in units of 2 MiB: a handle opens the whole block that the
// driver cut an allocation from, and smaller ones would lend a neighbour's bytes too.

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

#include "payload.hpp"

namespace rollring::cuda {
namespace {

using weights::Chunk;
using weights::ChunkTicket;
using weights::Fd;

constexpr std::uint64_t block_bytes = std::uint64_t{2} << 20;
static_assert(sizeof(CUipcMemHandle) == sizeof(ChunkTicket::handle));

class IpcChunk : public Chunk {
  public:
    IpcChunk(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes)
        : gpu_(std::move(gpu)), ticket_{PayloadMemory::legacy_ipc, bytes, {}} {}
    IpcChunk(const IpcChunk&) = delete;
    IpcChunk& operator=(const IpcChunk&) = delete;
    ~IpcChunk() override {
        if (address_ == 0) return;
        const Context::Scope scope(gpu_->context());
        if (imported_) {
            gpu_->api().cuIpcCloseMemHandle(address_);
        } else {
            gpu_->api().cuMemFree(address_);
        }
    }

    [[nodiscard]] std::byte* data() const override { return std::bit_cast<std::byte*>(address_); }
    [[nodiscard]] ChunkTicket ticket() const override { return ticket_; }
    [[nodiscard]] int fd() const override { return -1; }

    Result<void> create();
    Result<void> open(const ChunkTicket& ticket);

  private:
    [[nodiscard]] Error failed(CUresult result, std::string_view what) const {
        return cuda_error(result, fmt::format("GPU {}: cannot {} {} B of device memory",
                                              gpu_->device().gpu, what, ticket_.bytes));
    }

    std::shared_ptr<const Gpu> gpu_;
    ChunkTicket ticket_;
    CUdeviceptr address_ = 0;
    bool imported_ = false;
};

Result<void> IpcChunk::create() {
    const Driver& api = gpu_->api();
    CUresult result = api.cuMemAlloc(&address_, ticket_.bytes);
    if (result != CUDA_SUCCESS) {
        address_ = 0;
        return std::unexpected(failed(result, "allocate"));
    }
    CUipcMemHandle handle{};
    result = api.cuIpcGetMemHandle(&handle, address_);
    if (result != CUDA_SUCCESS) {
        Error error = failed(result, "get a CUDA IPC handle for");
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
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "zero"));
    return {};
}

Result<void> IpcChunk::open(const ChunkTicket& ticket) {
    ticket_ = ticket;
    imported_ = true;
    CUipcMemHandle handle{};
    std::memcpy(&handle, ticket.handle.data(), sizeof handle);
    const Driver& api = gpu_->api();
    CUresult result = api.cuIpcOpenMemHandle(&address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        address_ = 0;
        Error error = failed(result, "open the CUDA IPC handle of");
        if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS) {
            error.code = Errc::no_peer_access;
        }
        return std::unexpected(std::move(error));
    }
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    result = api.cuMemGetAddressRange(&start, &bytes, address_);
    if (result != CUDA_SUCCESS) return std::unexpected(failed(result, "learn the extent of"));
    if (address_ - start + ticket.bytes > bytes) {
        return std::unexpected(
            Error{Errc::bad_manifest, 0,
                  fmt::format("the publisher's CUDA IPC handle is for {} B and not for {}",
                              bytes - (address_ - start), ticket.bytes)});
    }
    return {};
}

class IpcMemory : public weights::Memory {
  public:
    explicit IpcMemory(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}

    [[nodiscard]] PayloadMemory kind() const override { return PayloadMemory::legacy_ipc; }

    Result<std::unique_ptr<Chunk>> make(std::uint64_t bytes) override {
        if (bytes == 0 || bytes > std::uint64_t{1} << 48) {
            return std::unexpected(
                Error{Errc::invalid_argument, 0, fmt::format("a chunk of {} B", bytes)});
        }
        const Context::Scope scope(gpu_->context());
        auto chunk =
            std::make_unique<IpcChunk>(gpu_, (bytes + block_bytes - 1) / block_bytes * block_bytes);
        if (auto done = chunk->create(); !done) return std::unexpected(done.error());
        return chunk;
    }

    Result<std::unique_ptr<Chunk>> import(const ChunkTicket& ticket, Fd fd) override {
        static_cast<void>(fd);  // nothing comes with this kind
        auto done = check_ticket(*gpu_, ticket, PayloadMemory::legacy_ipc, block_bytes);
        if (!done) return std::unexpected(done.error());
        const Context::Scope scope(gpu_->context());
        auto chunk = std::make_unique<IpcChunk>(gpu_, ticket.bytes);
        done = chunk->open(ticket);
        if (!done) return std::unexpected(done.error());
        return chunk;
    }

  private:
    std::shared_ptr<const Gpu> gpu_;
};

}  // namespace

Result<std::unique_ptr<weights::Memory>> make_ipc_memory(std::shared_ptr<const Gpu> gpu) {
    return std::make_unique<IpcMemory>(std::move(gpu));
}

}  // namespace rollring::cuda
