#include "gpu.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

// The fat binary, in a file that embed.py writes.
extern "C" [[gnu::visibility("hidden")]] const unsigned char rollring_kernels_image[];

namespace rollring::cuda {
namespace {

constexpr std::array<const char*, kernel_count> kernel_names = {
    "rollring_pack_plain",      "rollring_pack_plain_sums",  "rollring_pack_casts",
    "rollring_pack_casts_sums", "rollring_pack_anything",    "rollring_pack_anything_sums",
    "rollring_unpack_plain",    "rollring_unpack_over_link", "rollring_unpack_anything",
    "rollring_unpack_views",    "rollring_checksum",         "rollring_gather",
    "rollring_delta_compare",   "rollring_delta_exchange",
};

constexpr std::uint64_t blocks_most = (std::uint64_t{1} << 31) - 1;  // of a launch, for CUDA

// Of the others, each warp of a block takes one.
bool has_a_tile_a_block(Kernel kernel) {
    return kernel != Kernel::unpack_views && kernel != Kernel::gather &&
           kernel != Kernel::delta_exchange;
}

unsigned threads_of(Kernel kernel) {
    return kernel <= Kernel::checksum && kernel != Kernel::unpack_views ? copy_threads
                                                                        : block_threads;
}

}  // namespace

Result<std::shared_ptr<const Gpu>> Gpu::open(Device device) {
    auto context = Context::open(device);
    if (!context) return std::unexpected(context.error());
    std::shared_ptr<Gpu> gpu(new Gpu(std::move(*context), device));
    if (auto loaded = gpu->load(); !loaded) return std::unexpected(loaded.error());
    return gpu;
}

Result<void> Gpu::load() {
    const Context::Scope scope(context_);
    const auto failed = [&](CUresult result, std::string_view what) {
        return std::unexpected(
            cuda_error(result, fmt::format("GPU {}: cannot {}", device_.gpu, what)));
    };
    CUresult result = api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return failed(result, "create a stream");
    result = api().cuEventCreate(&behind_, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return failed(result, "create an event");
    result = api().cuEventCreate(&ahead_, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return failed(result, "create an event");
    result = api().cuModuleLoadData(&module_, rollring_kernels_image);
    if (result != CUDA_SUCCESS) {
        return failed(result,
                      "load the kernels of rollring, which are built for compute "
                      "capability 8.0 and above");
    }
    const int processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    for (std::size_t i = 0; i < kernel_count; i++) {
        int blocks = 0;
        result = api().cuModuleGetFunction(&kernels_[i].function, module_, kernel_names[i]);
        if (result == CUDA_SUCCESS) {
            result = api().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &blocks, kernels_[i].function, static_cast<int>(threads_of(static_cast<Kernel>(i))),
                0);
        }
        if (result != CUDA_SUCCESS) {
            return failed(result, fmt::format("find kernel {}", kernel_names[i]));
        }
        kernels_[i].resident = static_cast<std::uint64_t>(std::max(1, blocks * processors));
        if (static_cast<Kernel>(i) == Kernel::gather) {
            // Depends on the source of the machine code: code that the driver made from older PTX
            // does not wait.
            int ptx = 0;
            const CUresult known =
                api().cuFuncGetAttribute(&ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernels_[i].function);
            kernels_[i].early = known == CUDA_SUCCESS && ptx >= 90;
        }
    }
    return {};
}

Gpu::~Gpu() {
    const Context::Scope scope(context_);
    if (module_ != nullptr) api().cuModuleUnload(module_);
    if (behind_ != nullptr) api().cuEventDestroy(behind_);
    if (ahead_ != nullptr) api().cuEventDestroy(ahead_);
    if (stream_ != nullptr) api().cuStreamDestroy(stream_);
}

Result<CUstream> Gpu::stream_behind(Stream given) const {
    if (given.handle != nullptr) return static_cast<CUstream>(given.handle);
    CUresult result = api().cuEventRecord(behind_, CU_STREAM_LEGACY);
    if (result == CUDA_SUCCESS) result = api().cuStreamWaitEvent(stream_, behind_, 0);
    if (result == CUDA_SUCCESS) return stream_;
    return std::unexpected(
        cuda_error(result, fmt::format("GPU {}: cannot wait for the default stream", device_.gpu)));
}

Result<void> Gpu::hold_default_stream(Stream given) const {
    if (given.handle != nullptr) return {};
    CUresult result = api().cuEventRecord(ahead_, stream_);
    if (result == CUDA_SUCCESS) result = api().cuStreamWaitEvent(CU_STREAM_LEGACY, ahead_, 0);
    if (result == CUDA_SUCCESS) return {};
    return std::unexpected(
        cuda_error(result, fmt::format("GPU {}: cannot hold the default stream", device_.gpu)));
}

// Polls, because a stream may wait for an event that never comes.
Result<void> Gpu::wait(CUstream stream, Deadline deadline) const {
    for (;;) {
        const CUresult result = api().cuStreamQuery(stream);
        if (result == CUDA_SUCCESS) return {};
        if (result != CUDA_ERROR_NOT_READY) return stream_failure(result);
        if (deadline.passed()) {
            return refused(
                Errc::timed_out,
                fmt::format("GPU {}: a stream did not finish by the deadline", device_.gpu));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

std::unexpected<Error> Gpu::stream_failure(CUresult result) const {
    return std::unexpected(
        cuda_error(result, fmt::format("GPU {}: work on a stream failed", device_.gpu)));
}

int Gpu::attribute(CUdevice_attribute which) const {
    int value = 0;
    const CUresult result = api().cuDeviceGetAttribute(&value, which, context_.device());
    return result == CUDA_SUCCESS ? value : 0;
}

Result<void> Gpu::launch_tiles(Kernel kernel, const Grid& grid, void* args, CUstream stream) const {
    if (grid.tiles == 0) return {};
    const auto index = static_cast<std::size_t>(kernel);
    const Loaded& loaded = kernels_[index];
    const std::uint64_t a_block = has_a_tile_a_block(kernel) ? 1 : block_threads / warp_lanes;
    std::uint64_t blocks = std::min((grid.tiles + a_block - 1) / a_block, blocks_most);
    if (grid.waves != 0) blocks = std::min(blocks, loaded.resident * grid.waves);
    if (grid.blocks_max != 0) blocks = std::min(blocks, grid.blocks_max);
    void* parameters[] = {args};
    CUlaunchAttribute early{};
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>(blocks);
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = threads_of(kernel);
    config.hStream = stream;
    config.attrs = &early;
    config.numAttrs = loaded.early ? 1 : 0;
    const CUresult result = api().cuLaunchKernelEx(&config, loaded.function, parameters, nullptr);
    if (result == CUDA_SUCCESS) return {};
    return std::unexpected(cuda_error(
        result, fmt::format("GPU {}: cannot launch {}", device_.gpu, kernel_names[index])));
}

Result<DeviceBuffer> DeviceBuffer::make(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes) {
    DeviceBuffer made;
    made.gpu_ = std::move(gpu);
    if (bytes == 0) return made;
    const Context::Scope scope(made.gpu_->context());
    const CUresult result = made.gpu_->api().cuMemAlloc(&made.address_, bytes);
    if (result == CUDA_SUCCESS) return made;
    return std::unexpected(cuda_error(result, fmt::format("GPU {}: cannot allocate {} B for tables",
                                                          made.gpu_->device().gpu, bytes)));
}

Result<DeviceBuffer> DeviceBuffer::holding(std::shared_ptr<const Gpu> gpu,
                                           std::span<const std::byte> bytes) {
    auto made = make(std::move(gpu), bytes.size());
    if (!made || bytes.empty()) return made;
    const Context::Scope scope(made->gpu_->context());
    const Driver& api = made->gpu_->api();
    CUstream stream = made->gpu_->stream({});
    CUresult result = api.cuMemcpyHtoDAsync(made->address_, bytes.data(), bytes.size(), stream);
    if (result == CUDA_SUCCESS) result = api.cuStreamSynchronize(stream);
    if (result == CUDA_SUCCESS) return made;
    return std::unexpected(cuda_error(result, fmt::format("GPU {}: cannot upload {} B of tables",
                                                          made->gpu_->device().gpu, bytes.size())));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : gpu_(std::move(other.gpu_)), address_(std::exchange(other.address_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(address_, other.address_);
    return *this;
}

DeviceBuffer::~DeviceBuffer() {
    if (address_ == 0) return;
    const Context::Scope scope(gpu_->context());
    gpu_->api().cuMemFree(address_);
}

}  // namespace rollring::cuda
