#include "driver.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstring>
#include <utility>

namespace rollring {
namespace cuda {
namespace {

Result<const Driver*> load() {
    const auto missing = [](std::string message) {
        return refused(Errc::no_gpu, std::move(message));
    };
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return missing(
            fmt::format("libcuda cannot be loaded ({}): this machine has no NVIDIA "
                        "driver, or the container was started without GPUs",
                        dlerror()));
    }
    static Driver api;
#define ROLLRING_CUDA_TEXT(name) #name
#define ROLLRING_CUDA_NAME(name) ROLLRING_CUDA_TEXT(name)
#define ROLLRING_CUDA_LOAD(name)                                                               \
    api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, ROLLRING_CUDA_NAME(name))); \
    if (api.name == nullptr) {                                                                 \
        return missing("this libcuda has no " ROLLRING_CUDA_NAME(                              \
            name) ": its driver is too old "                                                   \
                  "for rollring, which needs CUDA 12");                                        \
    }
    ROLLRING_CUDA_FUNCTIONS(ROLLRING_CUDA_LOAD)
#undef ROLLRING_CUDA_LOAD
    if (const CUresult result = api.cuInit(0); result != CUDA_SUCCESS) {
        const char* text = nullptr;
        api.cuGetErrorName(result, &text);
        return missing(
            fmt::format("cuInit failed ({}): no usable GPU here, or CUDA_VISIBLE_DEVICES "
                        "hides them all",
                        text == nullptr ? "unknown" : text));
    }
    return &api;
}

}  // namespace

Result<const Driver*> driver() {
    static const Result<const Driver*> loaded = load();
    return loaded;
}

Error cuda_error(CUresult result, std::string_view what) {
    const char* name = nullptr;
    const char* text = nullptr;
    if (const auto api = driver()) {
        (*api)->cuGetErrorName(result, &name);
        (*api)->cuGetErrorString(result, &text);
    }
    const Errc code =
        result == CUDA_ERROR_OUT_OF_MEMORY ? Errc::out_of_device_memory : Errc::device_error;
    return Error{code, 0,
                 fmt::format("{} ({}: {})", what, name == nullptr ? "unknown error" : name,
                             text == nullptr ? "" : text)};
}

Result<Context> Context::open(Device device) {
    const auto api = driver();
    if (!api) return std::unexpected(api.error());
    Context made;
    made.api_ = *api;
    int count = 0;
    made.api_->cuDeviceGetCount(&count);
    if (device.gpu < 0 || device.gpu >= count) {
        return refused(Errc::no_gpu,
                       fmt::format("no GPU {}: this process sees {}", device.gpu, count));
    }
    CUuuid uuid{};
    CUresult result = made.api_->cuDeviceGet(&made.device_, device.gpu);
    if (result == CUDA_SUCCESS) result = made.api_->cuDeviceGetUuid(&uuid, made.device_);
    if (result == CUDA_SUCCESS) {
        result = made.api_->cuDevicePrimaryCtxRetain(&made.context_, made.device_);
    }
    if (result != CUDA_SUCCESS) {
        return std::unexpected(cuda_error(result, fmt::format("cannot use GPU {}", device.gpu)));
    }
    std::memcpy(made.uuid_.bytes.data(), uuid.bytes, made.uuid_.bytes.size());
    return made;
}

Context::Context(Context&& other) noexcept
    : api_(other.api_),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)),
      uuid_(other.uuid_) {}

Context& Context::operator=(Context&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(device_, other.device_);
    std::swap(context_, other.context_);
    std::swap(uuid_, other.uuid_);
    return *this;
}

Context::~Context() {
    if (context_ != nullptr) api_->cuDevicePrimaryCtxRelease(device_);
}

Context::Scope::Scope(const Context& context) : api_(context.api_) {
    if (api_->cuCtxPushCurrent(context.context_) != CUDA_SUCCESS) api_ = nullptr;
}

Context::Scope::~Scope() {
    CUcontext popped = nullptr;
    if (api_ != nullptr) api_->cuCtxPopCurrent(&popped);
}

}  // namespace cuda

std::vector<GpuUuid> visible_gpus() {
    const auto api = cuda::driver();
    if (!api) return {};
    int count = 0;
    (*api)->cuDeviceGetCount(&count);
    std::vector<GpuUuid> uuids(static_cast<std::size_t>(count));
    for (int i = 0; i < count; i++) {
        CUdevice device = 0;
        CUuuid uuid{};
        (*api)->cuDeviceGet(&device, i);
        (*api)->cuDeviceGetUuid(&uuid, device);
        std::memcpy(uuids[static_cast<std::size_t>(i)].bytes.data(), uuid.bytes, sizeof uuid.bytes);
    }
    return uuids;
}

std::string why_no_gpu() {
    const auto api = cuda::driver();
    return api ? std::string{} : api.error().message;
}

}  // namespace rollring
