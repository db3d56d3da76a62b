// The memory of a memory domain on a GPU, with pinned host memory and copies between them.

#include <fmt/core.h>

#include <optional>
#include <utility>

#include "backends.hpp"
#include "vmm.hpp"

namespace rollring::cuda {
namespace {

using device::MemoryHandle;

CUdeviceptr device_pointer(const std::byte* address) {
    return reinterpret_cast<CUdeviceptr>(address);
}

class CudaPhysicalMemory final : public device::PhysicalMemory {
  public:
    CudaPhysicalMemory(Context context, int gpu) : context_(std::move(context)), gpu_(gpu) {}
    CudaPhysicalMemory(const CudaPhysicalMemory&) = delete;
    ~CudaPhysicalMemory() override {
        if (stream_ == nullptr) return;
        const Context::Scope scope(context_);
        api().cuStreamDestroy(stream_);
    }

    Result<void> start() {
        int supported = 0;
        api().cuDeviceGetAttribute(
            &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, context_.device());
        if (supported == 0) {
            return refused(
                Errc::unsupported,
                fmt::format("GPU {} has no virtual memory management (cuMemMap): its memory "
                            "cannot be released and resumed",
                            gpu_));
        }
        const auto vmm = Vmm::open(context_, Vmm::Sharing::none);
        if (!vmm) return failure(vmm.error());
        vmm_ = *vmm;
        const Context::Scope scope(context_);
        // A stream that does not wait for the legacy default stream.
        return done(api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
                    "prepare a memory domain");
    }

    [[nodiscard]] std::uint64_t granularity_bytes() const override {
        return vmm_->granularity_bytes();
    }

    Result<std::uint64_t> free_bytes() override {
        const Context::Scope scope(context_);
        std::size_t free = 0;
        std::size_t total = 0;
        const CUresult result = api().cuMemGetInfo(&free, &total);
        if (result != CUDA_SUCCESS) return failure(result, "ask for free memory");
        return free;
    }

    Result<std::byte*> reserve(std::uint64_t bytes) override {
        const auto address = vmm_->reserve(bytes);
        if (address) return *address;
        if (address.error().result == CUDA_ERROR_OUT_OF_MEMORY) {  // of addresses, not of memory
            return refused(Errc::device_error,
                           fmt::format("no range of {} addresses is left for GPU {}", bytes, gpu_));
        }
        return failure(address.error(), bytes);
    }

    Result<void> unreserve(std::byte* address, std::uint64_t bytes) override {
        return done(vmm_->unreserve(address, bytes), bytes);
    }

    Result<MemoryHandle> create(std::uint64_t bytes) override {
        const auto memory = vmm_->create(bytes);
        if (!memory) return failure(memory.error(), bytes);
        return *memory;
    }

    Result<void> destroy(MemoryHandle memory) override { return done(vmm_->destroy(memory)); }

    Result<void> map(std::byte* address, std::uint64_t bytes, MemoryHandle memory) override {
        const auto mapped = vmm_->map(address, bytes, memory, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        auto answer = done(mapped, bytes);
        // Here, out of memory means page tables: device_error, because freed memory would not help.
        if (!mapped && mapped.error().step == Vmm::giving_access) {
            answer.error().code = Errc::device_error;
        }
        return answer;
    }

    Result<void> unmap(std::byte* address, std::uint64_t bytes) override {
        return done(vmm_->unmap(address, bytes), bytes);
    }

    Result<std::byte*> pin(std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        void* slab = nullptr;
        const CUresult result = api().cuMemHostAlloc(&slab, bytes, CU_MEMHOSTALLOC_PORTABLE);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            return refused(
                Errc::host_memory,
                fmt::format(
                    "the system cannot provide {} bytes of pinned host memory: check free memory, "
                    "the cgroup's limit and ulimit -l, or release with Contents::drop",
                    bytes));
        }
        if (result != CUDA_SUCCESS) return failure(result, "pin host memory", bytes);
        return static_cast<std::byte*>(slab);
    }

    Result<void> unpin(std::byte* slab) override {
        const Context::Scope scope(context_);
        return done(api().cuMemFreeHost(slab), "free pinned host memory");
    }

    Result<void> copy_out(std::byte* slab, const std::byte* address, std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        return done(api().cuMemcpyDtoHAsync(slab, device_pointer(address), bytes, stream_),
                    "copy to the host", bytes);
    }

    Result<void> copy_in(std::byte* address, const std::byte* slab, std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        return done(api().cuMemcpyHtoDAsync(device_pointer(address), slab, bytes, stream_),
                    "copy from the host", bytes);
    }

    Result<void> wait_copies() override {
        const Context::Scope scope(context_);
        return done(api().cuStreamSynchronize(stream_), "wait for copies");
    }

    Result<void> wait(std::span<const Stream> streams) override {
        const Context::Scope scope(context_);
        if (streams.empty()) return done(api().cuCtxSynchronize(), "wait for the device");
        for (const Stream stream : streams) {
            const CUresult result = api().cuStreamSynchronize(static_cast<CUstream>(stream.handle));
            if (result != CUDA_SUCCESS) return failure(result, "wait for a stream");
        }
        return {};
    }

  private:
    [[nodiscard]] const Driver& api() const { return context_.api(); }

    [[nodiscard]] std::string what(std::string_view tried, std::uint64_t bytes) const {
        if (bytes == 0) return fmt::format("cannot {} (GPU {})", tried, gpu_);
        return fmt::format("cannot {} (GPU {}, {} bytes)", tried, gpu_, bytes);
    }

    [[nodiscard]] std::unexpected<Error> failure(CUresult result, std::string_view tried,
                                                 std::uint64_t bytes = 0) const {
        return std::unexpected(cuda_error(result, what(tried, bytes)));
    }

    [[nodiscard]] std::unexpected<Error> failure(const Refusal& refusal,
                                                 std::uint64_t bytes = 0) const {
        return failure(refusal.result, fmt::format("{} memory", refusal.step), bytes);
    }

    [[nodiscard]] Result<void> done(const Driven<void>& call, std::uint64_t bytes = 0) const {
        if (call) return {};
        return failure(call.error(), bytes);
    }

    [[nodiscard]] Result<void> done(CUresult result, std::string_view tried,
                                    std::uint64_t bytes = 0) const {
        if (result == CUDA_SUCCESS) return {};
        return failure(result, tried, bytes);
    }

    Context context_;
    int gpu_;
    std::optional<Vmm> vmm_;  // from start() on
    CUstream stream_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<device::PhysicalMemory>> open_physical_memory(Device device) {
    auto context = Context::open(device);
    if (!context) return std::unexpected(context.error());
    auto memory = std::make_unique<CudaPhysicalMemory>(std::move(*context), device.gpu);
    if (const auto started = memory->start(); !started) return std::unexpected(started.error());
    return memory;
}

}  // namespace rollring::cuda
