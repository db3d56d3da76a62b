// Physical memory of a GPU by the virtual memory calls of the CUDA driver.

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "driver.hpp"
#include "physical.hpp"

namespace rollring::cuda {
namespace {

CUdeviceptr device_pointer(const std::byte* address) {
    return reinterpret_cast<CUdeviceptr>(address);
}

CUmemGenericAllocationHandle driver_handle(MemoryHandle handle) {
    return std::to_underlying(handle);
}

class CudaPhysicalMemory final : public PhysicalMemory {
  public:
    CudaPhysicalMemory(Context context, int gpu) : context_(std::move(context)), gpu_(gpu) {
        where_.type = CU_MEM_LOCATION_TYPE_DEVICE;
        where_.id = context_.device();
        kind_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        kind_.location = where_;
    }
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
            return std::unexpected(
                Error{Errc::unsupported, 0,
                      fmt::format("GPU {} has no virtual memory management (cuMemMap): its memory "
                                  "cannot be released and resumed",
                                  gpu_)});
        }
        const Context::Scope scope(context_);
        std::size_t granularity_bytes = 0;
        CUresult result = api().cuMemGetAllocationGranularity(&granularity_bytes, &kind_,
                                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        granularity_bytes_ = granularity_bytes;
        // A stream that does not wait for the legacy default stream.
        if (result == CUDA_SUCCESS) {
            result = api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
        }
        return done(result, "prepare a memory domain");
    }

    [[nodiscard]] std::uint64_t granularity_bytes() const override { return granularity_bytes_; }

    Result<std::uint64_t> free_bytes() override {
        const Context::Scope scope(context_);
        std::size_t free = 0;
        std::size_t total = 0;
        const CUresult result = api().cuMemGetInfo(&free, &total);
        if (result != CUDA_SUCCESS) return failure(result, "ask for free memory");
        return free;
    }

    Result<std::byte*> reserve(std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        CUdeviceptr address = 0;
        const CUresult result =
            api().cuMemAddressReserve(&address, bytes, granularity_bytes_, 0, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {  // addresses are short, not memory
            return std::unexpected(
                Error{Errc::device_error, 0,
                      fmt::format("no range of {} addresses is left for GPU {}", bytes, gpu_)});
        }
        if (result != CUDA_SUCCESS) return failure(result, "reserve addresses", bytes);
        return std::bit_cast<std::byte*>(address);
    }

    Result<void> unreserve(std::byte* address, std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        return done(api().cuMemAddressFree(device_pointer(address), bytes), "free addresses",
                    bytes);
    }

    Result<MemoryHandle> create(std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        CUmemGenericAllocationHandle handle = 0;
        const CUresult result = api().cuMemCreate(&handle, bytes, &kind_, 0);
        if (result != CUDA_SUCCESS) return failure(result, "create memory", bytes);
        return MemoryHandle{handle};
    }

    Result<void> destroy(MemoryHandle handle) override {
        const Context::Scope scope(context_);
        return done(api().cuMemRelease(driver_handle(handle)), "let go of memory");
    }

    Result<void> map(std::byte* address, std::uint64_t bytes, MemoryHandle handle) override {
        const Context::Scope scope(context_);
        const CUdeviceptr pointer = device_pointer(address);
        CUresult result = api().cuMemMap(pointer, bytes, 0, driver_handle(handle), 0);
        if (result != CUDA_SUCCESS) return failure(result, "map memory", bytes);
        const CUmemAccessDesc access{where_, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        result = api().cuMemSetAccess(pointer, bytes, &access, 1);
        if (result == CUDA_SUCCESS) return {};
        api().cuMemUnmap(pointer, bytes);
        // Out of memory here means page tables: device_error, as no free memory would help.
        Error error = cuda_error(result, what("give access to memory", bytes));
        error.code = Errc::device_error;
        return std::unexpected(std::move(error));
    }

    Result<void> unmap(std::byte* address, std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        return done(api().cuMemUnmap(device_pointer(address), bytes), "unmap memory", bytes);
    }

    Result<std::byte*> pin(std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        void* slab = nullptr;
        const CUresult result = api().cuMemHostAlloc(&slab, bytes, CU_MEMHOSTALLOC_PORTABLE);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            return std::unexpected(
                Error{Errc::host_memory, 0,
                      fmt::format("the system gave no {} bytes of pinned host memory: look at free "
                                  "memory, the cgroup's limit and ulimit -l, or release with "
                                  "Contents::drop",
                                  bytes)});
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

    [[nodiscard]] Result<void> done(CUresult result, std::string_view tried,
                                    std::uint64_t bytes = 0) const {
        if (result == CUDA_SUCCESS) return {};
        return failure(result, tried, bytes);
    }

    Context context_;
    int gpu_;
    CUmemLocation where_{};
    CUmemAllocationProp kind_{};
    std::uint64_t granularity_bytes_ = 0;
    CUstream stream_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<PhysicalMemory>> open_physical_memory(Device device) {
    auto context = Context::open(device);
    if (!context) return std::unexpected(context.error());
    auto memory = std::make_unique<CudaPhysicalMemory>(std::move(*context), device.gpu);
    if (const auto started = memory->start(); !started) return std::unexpected(started.error());
    return memory;
}

}  // namespace rollring::cuda
