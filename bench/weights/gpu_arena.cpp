// Device memory for `rollring-bench weights`; built where there is CUDA. By the CUDA runtime, as a
// trainer would do it: it finds libcuda when it is first called, and its context is the one that
// librollring uses, too.

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "bench.hpp"
#include "rounding.hpp"
#include "weights/weights_memory.hpp"

namespace bench {
namespace {

void check(cudaError_t result, const std::string& what) {
    if (result != cudaSuccess) fail(fmt::format("{}: {}", what, cudaGetErrorString(result)));
}

class GpuArena final : public Arena {
  public:
    GpuArena(rollring::Device device, std::uint64_t bytes) : device_(device) {
        use();
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
        memory_ = allocate(bytes);
    }
    ~GpuArena() override {
        cudaSetDevice(device_.gpu);
        cudaFree(memory_);
        cudaFree(scratch_);
        cudaStreamDestroy(stream_);
    }
    std::byte* data() const override { return memory_; }
    void read(std::byte* to, std::uint64_t offset, std::uint64_t bytes) override {
        copy(to, memory_ + offset, bytes, cudaMemcpyDeviceToHost);
        check(cudaStreamSynchronize(stream_), "copy to the host");
    }
    void write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes) override {
        copy(memory_ + offset, from, bytes, cudaMemcpyHostToDevice);
        check(cudaStreamSynchronize(stream_), "copy to the GPU");
    }
    std::int64_t two_copies_ns(std::uint64_t bytes) override {
        make_scratch(bytes);
        const std::int64_t began_ns = now_ns();
        for (std::uint64_t at = 0; at < bytes; at += copy_chunk_bytes) {
            const std::uint64_t size = std::min(copy_chunk_bytes, bytes - at);
            copy(scratch_, memory_ + at, size, cudaMemcpyDeviceToDevice);
            copy(memory_ + at, scratch_, size, cudaMemcpyDeviceToDevice);
        }
        check(cudaStreamSynchronize(stream_), "two copies");
        return now_ns() - began_ns;
    }
    void copy_from(const Arena& other, std::uint64_t bytes) override {
        copy(memory_, other.data(), bytes, cudaMemcpyDeviceToDevice);
        check(cudaStreamSynchronize(stream_), "a copy");
    }
    void exchange(Arena& other, std::uint64_t bytes) override {
        make_scratch(bytes);
        for (std::uint64_t at = 0; at < bytes; at += copy_chunk_bytes) {
            const std::uint64_t size = std::min(copy_chunk_bytes, bytes - at);
            copy(scratch_, memory_ + at, size, cudaMemcpyDeviceToDevice);
            copy(memory_ + at, other.data() + at, size, cudaMemcpyDeviceToDevice);
            copy(other.data() + at, scratch_, size, cudaMemcpyDeviceToDevice);
        }
        check(cudaStreamSynchronize(stream_), "an exchange");
    }
    std::uint64_t free_bytes() const override { return gpu_facts(device_).free_bytes; }

  private:
    void make_scratch(std::uint64_t bytes) {
        use();
        if (scratch_ == nullptr) scratch_ = allocate(std::min(bytes, copy_chunk_bytes));
    }
    void use() const { check(cudaSetDevice(device_.gpu), "the GPU"); }
    void copy(std::byte* to, const std::byte* from, std::uint64_t bytes, cudaMemcpyKind kind) {
        use();
        check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "a copy");
    }
    // As torch's allocator does: the last bytes of another length may be in smaller pages.
    [[nodiscard]] static std::byte* allocate(std::uint64_t bytes) {
        constexpr std::uint64_t page_bytes = std::uint64_t{2} << 20;
        void* at = nullptr;
        const std::uint64_t size = round_up(bytes, page_bytes);
        if (size != 0) check(cudaMalloc(&at, size), fmt::format("{} bytes of the GPU", size));
        return static_cast<std::byte*>(at);
    }
    rollring::Device device_;
    cudaStream_t stream_ = nullptr;
    std::byte* memory_ = nullptr;
    std::byte* scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<Arena> make_gpu_arena(rollring::Device device, std::uint64_t bytes) {
    return std::make_unique<GpuArena>(device, bytes);
}

DeviceFacts gpu_facts(rollring::Device device) {
    check(cudaSetDevice(device.gpu), "the GPU");
    DeviceFacts facts{};
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "the GPU's memory");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device.gpu), "the GPU's name");
    std::memcpy(facts.name, properties.name, sizeof facts.name - 1);  // 256 bytes there
    facts.free_bytes = free;
    facts.total_bytes = total;
    return facts;
}

}  // namespace bench
