// Blocks of host memory that the GPU copies from and to over PCIe: those of the host back end,
// registered with CUDA while they live.

#include <fmt/core.h>

#include <bit>
#include <utility>

#include "payload.hpp"

namespace rollring::cuda {
namespace {

using device::BlockTicket;
using device::Fd;
using device::SharedBlock;

class RegisteredBlock : public SharedBlock {
  public:
    RegisteredBlock(std::shared_ptr<const Gpu> gpu, std::unique_ptr<SharedBlock> host)
        : gpu_(std::move(gpu)), host_(std::move(host)) {}
    RegisteredBlock(const RegisteredBlock&) = delete;
    RegisteredBlock& operator=(const RegisteredBlock&) = delete;
    ~RegisteredBlock() override {
        if (!registered_) return;
        const Context::Scope scope(gpu_->context());
        gpu_->api().cuMemHostUnregister(host_->data());
    }

    [[nodiscard]] std::byte* data() const override { return std::bit_cast<std::byte*>(address_); }
    [[nodiscard]] BlockTicket ticket() const override { return host_->ticket(); }
    [[nodiscard]] int fd() const override { return host_->fd(); }

    Result<void> enrol(unsigned flags);

  private:
    std::shared_ptr<const Gpu> gpu_;
    std::unique_ptr<SharedBlock> host_;
    bool registered_ = false;
    CUdeviceptr address_ = 0;
};

Result<void> RegisteredBlock::enrol(unsigned flags) {
    const Driver& api = gpu_->api();
    const std::uint64_t bytes = host_->ticket().bytes;
    CUresult result = api.cuMemHostRegister(host_->data(), bytes, flags);
    registered_ = result == CUDA_SUCCESS;
    if (registered_) result = api.cuMemHostGetDevicePointer(&address_, host_->data(), 0);
    if (result == CUDA_SUCCESS) return {};
    Error error = cuda_error(result, fmt::format("GPU {}: cannot register {} B of host memory",
                                                 gpu_->device().gpu, bytes));
    if (error.code == Errc::out_of_device_memory) {  // pinnable memory is short
        error.code = Errc::host_memory;
        error.message += "; is there a limit on locked memory (ulimit -l)?";
    } else if (result == CUDA_ERROR_NOT_SUPPORTED) {
        error.code = Errc::unsupported;
    }
    return std::unexpected(std::move(error));
}

class RegisteredMemory : public device::Memory {
  public:
    RegisteredMemory(std::shared_ptr<const Gpu> gpu, std::unique_ptr<device::Memory> host)
        : gpu_(std::move(gpu)), host_(std::move(host)) {}

    Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) override {
        return enrolled(host_->make(bytes), 0);
    }
    Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) override;

  private:
    Result<std::unique_ptr<SharedBlock>> enrolled(Result<std::unique_ptr<SharedBlock>> host,
                                                  unsigned more_flags) {
        if (!host) return host;
        const Context::Scope scope(gpu_->context());
        auto block = std::make_unique<RegisteredBlock>(gpu_, std::move(*host));
        const auto done =
            block->enrol(CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE | more_flags);
        if (!done) return std::unexpected(done.error());
        return block;
    }

    std::shared_ptr<const Gpu> gpu_;
    std::unique_ptr<device::Memory> host_;
};

Result<std::unique_ptr<SharedBlock>> RegisteredMemory::import(const BlockTicket& ticket, Fd fd) {
    if (gpu_->attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) == 0) {
        return refused(
            Errc::unsupported,
            fmt::format("GPU {}: its driver cannot register read-only host memory, which a "
                        "publisher with PayloadMemory::host provides; load with Device::host(), "
                        "or let the publisher use vmm",
                        gpu_->device().gpu));
    }
    return enrolled(host_->import(ticket, std::move(fd)), CU_MEMHOSTREGISTER_READ_ONLY);
}

}  // namespace

Result<std::unique_ptr<device::Memory>> make_registered_memory(
    std::shared_ptr<const Gpu> gpu, std::unique_ptr<device::Memory> host) {
    return std::make_unique<RegisteredMemory>(std::move(gpu), std::move(host));
}

}  // namespace rollring::cuda
