// Tensors of the crash programs in the memory of a GPU.

#include <utility>

#include "driver.hpp"
#include "support/process.hpp"
#include "weights_model.hpp"

namespace rollring::test {
namespace {

using cuda::Context;

void fine(CUresult result, const char* what) {
    require(result == CUDA_SUCCESS, "{}", cuda::cuda_error(result, what).to_string());
}

CUdeviceptr address(const std::byte* at) {
    return reinterpret_cast<CUdeviceptr>(at);
}

class GpuStore : public Store {
  public:
    GpuStore(Device device, Context context) : device_(device), context_(std::move(context)) {}
    ~GpuStore() override {
        const Context::Scope scope(context_);
        for (const CUdeviceptr block : blocks_) static_cast<void>(context_.api().cuMemFree(block));
    }
    [[nodiscard]] Device device() const override { return device_; }
    // From blocks that others may open, as torch's allocator has them.
    std::byte* make(std::size_t bytes) override {
        constexpr std::size_t block_bytes = 2 << 20;
        constexpr std::size_t apart = 512;
        const std::size_t taken = (bytes / apart + 1) * apart;
        require(taken <= block_bytes, "a tensor of {} B", bytes);
        if (blocks_.empty() || used_ + taken > block_bytes) {
            const Context::Scope scope(context_);
            fine(context_.api().cuMemAlloc(&blocks_.emplace_back(), block_bytes), "cuMemAlloc");
            used_ = 0;
        }
        return reinterpret_cast<std::byte*>(blocks_.back() + std::exchange(used_, used_ + taken));
    }
    void write(std::byte* to, std::span<const std::byte> bytes) override {
        if (bytes.empty()) return;
        const Context::Scope scope(context_);
        fine(context_.api().cuMemcpyHtoDAsync(address(to), bytes.data(), bytes.size(), nullptr),
             "cuMemcpyHtoDAsync");
        fine(context_.api().cuCtxSynchronize(), "cuCtxSynchronize");
    }
    void read(const std::byte* from, std::span<std::byte> bytes) override {
        if (bytes.empty()) return;
        const Context::Scope scope(context_);
        fine(context_.api().cuMemcpyDtoHAsync(bytes.data(), address(from), bytes.size(), nullptr),
             "cuMemcpyDtoHAsync");
        fine(context_.api().cuCtxSynchronize(), "cuCtxSynchronize");
    }
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
        if (bytes == 0) return;
        const Context::Scope scope(context_);
        fine(context_.api().cuMemcpyDtoDAsync(address(to), address(from), bytes, nullptr),
             "cuMemcpyDtoDAsync");
        fine(context_.api().cuCtxSynchronize(), "cuCtxSynchronize");
    }

  private:
    Device device_;
    Context context_;
    std::vector<CUdeviceptr> blocks_;
    std::size_t used_ = 0;  // of the last one
};

}  // namespace

std::unique_ptr<Store> make_gpu_store(Device device) {
    auto context = Context::open(device);
    require(context.has_value(), "{}", context ? "" : context.error().to_string());
    return std::make_unique<GpuStore>(device, std::move(*context));
}

}  // namespace rollring::test
