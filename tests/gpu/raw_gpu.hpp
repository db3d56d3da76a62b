#pragma once
// GPU 0 by plain driver calls, for tests of memory domains: any error ends the program.

#include <fmt/core.h>

#include <cstdlib>
#include <utility>

#include "driver.hpp"

namespace rollring::test {

class RawGpu {
  public:
    RawGpu() : context_(open()), scope_(context_) {}
    RawGpu(const RawGpu&) = delete;

    [[nodiscard]] const cuda::Driver& api() const { return context_.api(); }

    void must(CUresult result, const char* call) const {
        if (result == CUDA_SUCCESS) return;
        die(cuda::cuda_error(result, call).message);
    }

    [[noreturn]] static void die(const std::string& message) {
        fmt::print(stderr, "{}\n", message);
        static_cast<void>(std::fflush(stderr));
        std::_Exit(1);
    }

    template <class T>
    static T must(Result<T> result) {
        if (!result) die(result.error().to_string());
        if constexpr (!std::is_void_v<T>) return std::move(*result);
    }

    [[nodiscard]] std::uint64_t free_bytes() const {
        std::size_t free = 0;
        std::size_t total = 0;
        must(api().cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return free;
    }

    [[nodiscard]] CUdeviceptr allocate(std::uint64_t bytes) const {
        CUdeviceptr address = 0;
        must(api().cuMemAlloc(&address, bytes), "cuMemAlloc");
        return address;
    }

    [[nodiscard]] CUstream stream() const {
        CUstream made = nullptr;
        must(api().cuStreamCreate(&made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        return made;
    }

    void to_device(void* device, const void* host, std::uint64_t bytes) const {
        const auto address = reinterpret_cast<CUdeviceptr>(device);
        must(api().cuMemcpyHtoDAsync(address, host, bytes, nullptr), "cuMemcpyHtoDAsync");
        synchronize();
    }

    void to_host(void* host, const void* device, std::uint64_t bytes) const {
        const auto address = reinterpret_cast<CUdeviceptr>(device);
        must(api().cuMemcpyDtoHAsync(host, address, bytes, nullptr), "cuMemcpyDtoHAsync");
        synchronize();
    }

    void set(CUdeviceptr address, int value, std::uint64_t bytes, CUstream stream = nullptr) const {
        must(api().cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, stream),
             "cuMemsetD8Async");
    }
    void set(void* device, int value, std::uint64_t bytes, CUstream stream = nullptr) const {
        set(reinterpret_cast<CUdeviceptr>(device), value, bytes, stream);
    }

    void synchronize() const { must(api().cuCtxSynchronize(), "cuCtxSynchronize"); }

  private:
    static cuda::Context open() { return must(cuda::Context::open(Device::cuda(0))); }

    cuda::Context context_;
    cuda::Context::Scope scope_;
};

}  // namespace rollring::test
