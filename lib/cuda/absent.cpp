// What the GPU functions are in a build without CUDA.

#include "memory.hpp"

namespace rollring {
namespace {

constexpr const char* built_without =
    "this rollring was built without CUDA: configure it with -Dcuda=enabled where nvcc and cuda.h "
    "are installed";

}  // namespace

std::vector<GpuUuid> visible_gpus() {
    return {};
}

std::string why_no_gpu() {
    return built_without;
}

Result<weights::Backend> weights::make_gpu_backend(Device device, PayloadMemory kind) {
    static_cast<void>(device);
    static_cast<void>(kind);
    return std::unexpected(Error{Errc::no_gpu, 0, built_without});
}

}  // namespace rollring
