// Tensors of the crash programs in the memory of a GPU.

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
    std::byte* make(std::size_t bytes) override {
        const Context::Scope scope(context_);
        CUdeviceptr block = 0;
        fine(context_.api().cuMemAlloc(&block, bytes + 1), "cuMemAlloc");
        blocks_.push_back(block);
        return reinterpret_cast<std::byte*>(block);
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
};

}  // namespace

std::unique_ptr<Store> make_gpu_store(Device device) {
    auto context = Context::open(device);
    require(context.has_value(), "{}", context ? "" : context.error().to_string());
    return std::make_unique<GpuStore>(device, std::move(*context));
}

}  // namespace rollring::test
