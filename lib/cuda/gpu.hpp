#pragma once
// One GPU with our kernels loaded and a stream of our own, shared by all its users here.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "driver.hpp"
#include "kernel_args.hpp"
#include "rollring/time.hpp"

namespace rollring::cuda {

enum class Kernel : std::size_t {
    pack_plain,
    pack_plain_sums,
    pack_casts,
    pack_casts_sums,
    pack_anything,
    pack_anything_sums,
    unpack_plain,
    unpack_over_link,
    unpack_anything,
    unpack_views,
    checksum,
    gather,
    delta_compare,
    delta_exchange,
};
inline constexpr std::size_t kernel_count = 14;

class Gpu {
  public:
    static Result<std::shared_ptr<const Gpu>> open(Device device);
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;
    ~Gpu();

    [[nodiscard]] const Context& context() const { return context_; }
    [[nodiscard]] const Driver& api() const { return context_.api(); }
    [[nodiscard]] Device device() const { return device_; }
    // The caller's stream, or ours if it is null.
    [[nodiscard]] CUstream stream(Stream given) const {
        return given.handle == nullptr ? stream_ : static_cast<CUstream>(given.handle);
    }
    // The same, for work on the caller's tensors: our stream first waits for work that is queued on
    // the legacy default stream, which a caller without a stream may have used. Requires a current
    // context.
    Result<CUstream> stream_behind(Stream given) const;
    // Work that is queued on the default stream later runs after our work, so that a tensor may be
    // overwritten there as soon as it was put.
    Result<void> hold_default_stream(Stream given) const;
    // Waits until a stream is empty: timed_out, device_error. Requires a current context.
    Result<void> wait(CUstream stream, Deadline deadline) const;
    [[nodiscard]] std::unexpected<Error> stream_failure(CUresult result) const;
    [[nodiscard]] int attribute(CUdevice_attribute which) const;

    // Requires a current context. At most `waves` times as many blocks as fit on the GPU, and at
    // most `blocks`, unless these are 0.
    template <class Args>
    Result<void> launch(Kernel kernel, const Args& args, unsigned waves, CUstream stream,
                        std::uint64_t blocks = 0) const {
        Args copy = args;
        return launch_tiles(kernel, {args.tile_count, waves, blocks}, &copy, stream);
    }

  private:
    Gpu(Context context, Device device) : context_(std::move(context)), device_(device) {}
    Result<void> load();

    struct Grid {
        std::uint64_t tiles = 0;
        unsigned waves = 0;            // 0: no limit
        std::uint64_t blocks_max = 0;  // likewise
    };
    Result<void> launch_tiles(Kernel kernel, const Grid& grid, void* args, CUstream stream) const;

    struct Loaded {
        CUfunction function = nullptr;
        std::uint64_t resident = 1;  // blocks that fit on the GPU at once
        bool early = false;          // waits itself for earlier work
    };
    Context context_;
    Device device_;
    CUmodule module_ = nullptr;
    CUstream stream_ = nullptr;
    CUevent behind_ = nullptr;  // of the default stream, for ours
    CUevent ahead_ = nullptr;   // of ours, for the default stream
    std::array<Loaded, kernel_count> kernels_{};
};

// Device memory that no other process sees.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    static Result<DeviceBuffer> make(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes);
    static Result<DeviceBuffer> holding(std::shared_ptr<const Gpu> gpu,
                                        std::span<const std::byte> bytes);
    DeviceBuffer(DeviceBuffer&& other) noexcept;
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
    ~DeviceBuffer();

    [[nodiscard]] CUdeviceptr address() const { return address_; }  // 0: nothing was requested

  private:
    std::shared_ptr<const Gpu> gpu_;
    CUdeviceptr address_ = 0;
};

}  // namespace rollring::cuda
