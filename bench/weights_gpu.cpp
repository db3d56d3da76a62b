// Device memory for `rollring-bench weights`; built where there is CUDA.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "bench.hpp"
#include "driver.hpp"
#include "weights_memory.hpp"

namespace bench {
namespace {

using rollring::cuda::Context;

void check(CUresult result, const std::string& what) {
    if (result != CUDA_SUCCESS) fail(rollring::cuda::cuda_error(result, what).to_string());
}

Context open(rollring::Device device) {
    auto context = Context::open(device);
    if (!context) fail(context.error().to_string());
    return std::move(*context);
}

class GpuArena final : public Arena {
  public:
    GpuArena(rollring::Device device, std::uint64_t bytes) : context_(open(device)) {
        const Context::Scope scope(context_);
        check(api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        memory_ = allocate(bytes);
    }
    ~GpuArena() override {
        const Context::Scope scope(context_);
        for (const CUdeviceptr at : {memory_, scratch_}) {
            if (at != 0) api().cuMemFree(at);
        }
        api().cuStreamDestroy(stream_);
    }
    std::byte* data() const override {
        return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(memory_));
    }
    void read(std::byte* to, std::uint64_t offset, std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        check(api().cuMemcpyDtoHAsync(to, memory_ + offset, bytes, stream_), "copy to the host");
        check(api().cuStreamSynchronize(stream_), "copy to the host");
    }
    void write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        check(api().cuMemcpyHtoDAsync(memory_ + offset, from, bytes, stream_), "copy to the GPU");
        check(api().cuStreamSynchronize(stream_), "copy to the GPU");
    }
    std::int64_t two_copies_ns(std::uint64_t bytes) override {
        const Context::Scope scope(context_);
        if (scratch_ == 0) scratch_ = allocate(std::min(bytes, copy_chunk_bytes));
        const std::int64_t began_ns = now_ns();
        for (std::uint64_t at = 0; at < bytes; at += copy_chunk_bytes) {
            const std::uint64_t size = std::min(copy_chunk_bytes, bytes - at);
            check(api().cuMemcpyDtoDAsync(scratch_, memory_ + at, size, stream_), "copy out");
            check(api().cuMemcpyDtoDAsync(memory_ + at, scratch_, size, stream_), "copy back");
        }
        check(api().cuStreamSynchronize(stream_), "two copies");
        return now_ns() - began_ns;
    }
    std::uint64_t free_bytes() const override {
        const Context::Scope scope(context_);
        std::size_t free = 0;
        std::size_t total = 0;
        check(api().cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return free;
    }

  private:
    [[nodiscard]] const rollring::cuda::Driver& api() const { return context_.api(); }
    [[nodiscard]] CUdeviceptr allocate(std::uint64_t bytes) const {
        CUdeviceptr at = 0;
        if (bytes == 0) return at;
        check(api().cuMemAlloc(&at, bytes), fmt::format("{} bytes of device memory", bytes));
        return at;
    }
    Context context_;
    CUstream stream_ = nullptr;
    CUdeviceptr memory_ = 0;
    CUdeviceptr scratch_ = 0;
};

}  // namespace

std::unique_ptr<Arena> make_gpu_arena(rollring::Device device, std::uint64_t bytes) {
    return std::make_unique<GpuArena>(device, bytes);
}

DeviceFacts gpu_facts(rollring::Device device) {
    const Context context = open(device);
    const Context::Scope scope(context);
    DeviceFacts facts{};
    std::size_t free = 0;
    std::size_t total = 0;
    check(context.api().cuMemGetInfo(&free, &total), "cuMemGetInfo");
    context.api().cuDeviceGetName(facts.name, sizeof facts.name, context.device());
    facts.free_bytes = free;
    facts.total_bytes = total;
    return facts;
}

}  // namespace bench
