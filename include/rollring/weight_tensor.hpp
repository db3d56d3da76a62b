#pragma once
// The payload of the weight channel: named tensors in the memory of a GPU or of the host.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rollring/schema.hpp"
#include "rollring/version.hpp"

namespace rollring {

// The location of tensors, and the processor that copies them.
struct Device {
    int gpu = -1;  // -1: host memory, copied by the CPU; else an ordinal of this process

    static constexpr Device host() { return {-1}; }
    static constexpr Device cuda(int ordinal) { return {ordinal}; }
    [[nodiscard]] constexpr bool is_gpu() const { return gpu >= 0; }
    friend bool operator==(const Device&, const Device&) = default;
};

// A GPU as all processes know it: ordinals depend on CUDA_VISIBLE_DEVICES, UUIDs do not.
struct ROLLRING_API GpuUuid {
    std::array<std::uint8_t, 16> bytes{};  // all zero: none, the host

    friend bool operator==(const GpuUuid&, const GpuUuid&) = default;
    [[nodiscard]] bool is_gpu() const { return *this != GpuUuid{}; }
    [[nodiscard]] std::string to_string() const;  // "GPU-8f8d...", "host"
};

// GPUs that this process can use, in the order of its ordinals. Empty without a GPU, without
// libcuda, or in a build without CUDA; why_no_gpu() then says which of these.
ROLLRING_API std::vector<GpuUuid> visible_gpus();
ROLLRING_API std::string why_no_gpu();

// A stream of CUDA (cudaStream_t and CUstream are the same thing). Null: the channel's own stream,
// behind all work queued on the legacy default stream by then (torch's, unless told otherwise).
// Ignored where the CPU copies.
struct Stream {
    void* handle = nullptr;
};

// Which elements of a published tensor a tensor of an engine takes: its element (i, j, ...) is the
// published element number offset + i * strides[0] + j * strides[1] + ..., where the elements of
// the published tensor are counted in row-major order, from 0, whatever its strides are there.
// Rows 8 to 11 of a published [32, 100] are {.offset = 800} of a tensor [4, 100]; columns 25 to 49
// are {.offset = 25, .strides = {100, 1}} of a tensor [32, 25].
struct TensorView {
    std::uint64_t offset = 0;
    // One for each extent of the engine's tensor, none below zero; 0 takes the same elements again.
    // Empty: one published element after the other.
    std::vector<std::int64_t> strides = {};

    friend bool operator==(const TensorView&, const TensorView&) = default;
};

// A tensor of the caller's, described and never owned: `data` must stay valid while a publisher or
// a subscriber that was given it lives.
struct WeightTensor {
    std::string name;  // UTF-8, 1 to 1023 bytes, unique (but see `view`)
    DType dtype{};     // of the elements at `data`
    std::vector<std::int64_t> shape = {};
    std::vector<std::int64_t> strides = {};  // in elements; empty: contiguous, row-major
    void* data = nullptr;  // memory of the device; null only for a tensor that is `put` with a
                           // pointer each time, or that has no element
    std::string tag = "weights";                // up to 63 bytes, for people and for selection
    std::optional<DType> published_dtype = {};  // f32 can go out as bf16 or f16, rounded to nearest
                                                // even; else the same as dtype
    // For trainers: its memory is that of an earlier tensor, with the same address, dtypes, shape
    // and strides, in every version: the bytes are sent once. Tensors are never tied by their
    // addresses alone, for a trainer may gather many of them into one buffer, one after another.
    bool tied = false;
    // For engines: takes this view of the published tensor of that name. Tensors that all have
    // views may share a name. Without one, the shape is the published one.
    std::optional<TensorView> view = {};
};

}  // namespace rollring
