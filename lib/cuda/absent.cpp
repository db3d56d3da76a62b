// The GPU functions of a build without CUDA.

#include "backends.hpp"

namespace rollring {
namespace {

constexpr const char* built_without =
    "rollring was built without CUDA: configure it with -Dcuda=enabled where nvcc and cuda.h are "
    "installed";

}  // namespace

std::vector<GpuUuid> visible_gpus() {
    return {};
}

std::string why_no_gpu() {
    return built_without;
}

namespace cuda {

Result<device::Backend> make_backend(Device device, PayloadMemory kind) {
    static_cast<void>(device);
    static_cast<void>(kind);
    return refused(Errc::no_gpu, built_without);
}

Result<std::unique_ptr<device::PhysicalMemory>> open_physical_memory(Device device) {
    static_cast<void>(device);
    return refused(Errc::no_gpu, built_without);
}

Result<std::unique_ptr<device::GatherDevice>> open_gather(Device device) {
    static_cast<void>(device);
    return refused(Errc::no_gpu, built_without);
}

}  // namespace cuda
}  // namespace rollring
