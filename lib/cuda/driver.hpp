#pragma once
// libcuda, loaded when it is first needed, so that librollring works on machines without it: a
// table of the functions that we call. Never link against libcuda or the CUDA runtime.

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/weight_tensor.hpp"

// Names as cuda.h maps them to their current versions (cuMemAlloc is cuMemAlloc_v2 and so on).
#define ROLLRING_CUDA_FUNCTIONS(X)                 \
    X(cuInit)                                      \
    X(cuGetErrorName)                              \
    X(cuGetErrorString)                            \
    X(cuDriverGetVersion)                          \
    X(cuDeviceGetCount)                            \
    X(cuDeviceGet)                                 \
    X(cuDeviceGetUuid)                             \
    X(cuDeviceGetName)                             \
    X(cuDeviceGetAttribute)                        \
    X(cuDeviceCanAccessPeer)                       \
    X(cuDevicePrimaryCtxRetain)                    \
    X(cuDevicePrimaryCtxRelease)                   \
    X(cuCtxPushCurrent)                            \
    X(cuCtxPopCurrent)                             \
    X(cuCtxSynchronize)                            \
    X(cuDeviceTotalMem)                            \
    X(cuModuleLoadData)                            \
    X(cuModuleUnload)                              \
    X(cuModuleGetFunction)                         \
    X(cuFuncSetAttribute)                          \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
    X(cuLaunchKernelEx)                            \
    X(cuFuncGetAttribute)                          \
    X(cuLaunchHostFunc)                            \
    X(cuStreamCreate)                              \
    X(cuStreamDestroy)                             \
    X(cuStreamQuery)                               \
    X(cuStreamSynchronize)                         \
    X(cuStreamWaitEvent)                           \
    X(cuEventCreate)                               \
    X(cuEventDestroy)                              \
    X(cuEventRecord)                               \
    X(cuEventSynchronize)                          \
    X(cuEventQuery)                                \
    X(cuEventElapsedTime)                          \
    X(cuMemGetInfo)                                \
    X(cuMemAlloc)                                  \
    X(cuMemFree)                                   \
    X(cuMemAllocHost)                              \
    X(cuMemFreeHost)                               \
    X(cuMemHostAlloc)                              \
    X(cuMemHostRegister)                           \
    X(cuMemHostUnregister)                         \
    X(cuMemHostGetDevicePointer)                   \
    X(cuMemcpyAsync)                               \
    X(cuMemcpyDtoHAsync)                           \
    X(cuMemcpyHtoDAsync)                           \
    X(cuMemcpyDtoDAsync)                           \
    X(cuMemsetD8Async)                             \
    X(cuPointerGetAttribute)                       \
    X(cuMemCreate)                                 \
    X(cuMemRelease)                                \
    X(cuMemAddressReserve)                         \
    X(cuMemAddressFree)                            \
    X(cuMemMap)                                    \
    X(cuMemUnmap)                                  \
    X(cuMemSetAccess)                              \
    X(cuMemGetAllocationGranularity)               \
    X(cuMemExportToShareableHandle)                \
    X(cuMemImportFromShareableHandle)              \
    X(cuMemGetAllocationPropertiesFromHandle)      \
    X(cuIpcGetMemHandle)                           \
    X(cuIpcOpenMemHandle)                          \
    X(cuIpcCloseMemHandle)                         \
    X(cuMemGetAddressRange)

namespace rollring::cuda {

// Members have the names of the functions, which is not our style; and a name in parentheses would
// not be a member.
// NOLINTBEGIN(readability-identifier-naming,bugprone-macro-parentheses)
struct Driver {
#define ROLLRING_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
    ROLLRING_CUDA_FUNCTIONS(ROLLRING_CUDA_MEMBER)
#undef ROLLRING_CUDA_MEMBER
};
// NOLINTEND(readability-identifier-naming,bugprone-macro-parentheses)

// Loads and initialises libcuda once for the process. Errc::no_gpu says what is missing.
Result<const Driver*> driver();

// "`what` (CUDA_ERROR_..., its text)", as device_error, or as out_of_device_memory if it is that.
Error cuda_error(CUresult result, std::string_view what);

// The primary context of one GPU: the one that the CUDA runtime and torch use. Made current on the
// calling thread while a Scope lives.
class Context {
  public:
    static Result<Context> open(Device device);
    Context(Context&& other) noexcept;
    Context& operator=(Context&& other) noexcept;
    ~Context();

    class Scope {
      public:
        explicit Scope(const Context& context);
        Scope(const Scope&) = delete;
        ~Scope();

      private:
        const Driver* api_;  // null if nothing was pushed, as in a process that is shutting down
    };

    [[nodiscard]] const Driver& api() const { return *api_; }
    [[nodiscard]] CUdevice device() const { return device_; }
    [[nodiscard]] GpuUuid uuid() const { return uuid_; }

  private:
    Context() = default;
    const Driver* api_ = nullptr;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    GpuUuid uuid_;
};

}  // namespace rollring::cuda
