#pragma once
// The payload of the weight channel: named tensors in the memory of a GPU or of the host.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
// behind all work queued so far on the legacy default stream, which torch uses by default.
// Ignored where the CPU copies.
struct Stream {
    void* handle = nullptr;
};

enum class PayloadMemory : std::uint8_t {
    automatic,   // vmm on a GPU, host otherwise
    vmm,         // CUDA virtual memory, passed as a file descriptor
    legacy_ipc,  // cudaMalloc with a CUDA IPC handle, where vmm is refused
    host,        // sealed memfd; with a GPU, its kernels read and write it over PCIe
    // The trainer's own tensors on a GPU, opened by CUDA IPC handles of the allocations around them
    // (cudaMalloc, as torch's allocator has them unless they are expandable). Nothing is packed, so
    // a version costs one read and one write of its bytes. In return the tensors must not change
    // from Transaction::put_all (or the first put) until commit or (without a layout) wait_staged
    // has returned, or the version was aborted; and their memory is not freed while an engine is
    // attached. Publisher and engines are different processes. Each tensor is contiguous and
    // published in its own dtype; not with checksums or handed_on.
    direct,
};
ROLLRING_API std::string_view name(PayloadMemory memory);

// The elements of a published tensor that an engine's tensor takes: the engine's element
// (i, j, ...) is the published element number offset + i * strides[0] + j * strides[1] + ....
// Published elements are numbered in row-major order, from 0, independent of the strides that the
// trainer's tensor has. Of a published [32, 100], a tensor [4, 100] takes rows 8 to 11 by
// {.offset = 800}, and a tensor [32, 25] takes columns 25 to 49 by
// {.offset = 25, .strides = {100, 1}}.
struct TensorView {
    std::uint64_t offset = 0;
    // One for each extent of the engine's tensor, none below zero; 0 takes the same elements again.
    // Empty: consecutive published elements.
    std::vector<std::int64_t> strides = {};

    friend bool operator==(const TensorView&, const TensorView&) = default;
};

// The description of a tensor that the caller owns: `data` must stay valid while a publisher or a
// subscriber that has it lives.
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
    // For trainers: in every version, this tensor is the memory of an earlier one, with the same
    // address, dtypes, shape and strides, and its bytes are sent once. Equal addresses alone never
    // tie tensors, because a trainer may gather many of them into one buffer, one after another.
    bool tied = false;
    // For engines: takes this view of the published tensor of that name. Tensors that all have
    // views may share a name. Without one, the shape is the published one.
    std::optional<TensorView> view = {};
};

// A tensor as subscribers see it.
struct TensorInfo {
    std::string name;
    DType dtype{};
    std::vector<std::int64_t> shape;
    std::string tag;
    std::uint64_t bytes = 0;
    std::uint32_t first_part = 0;  // it lies in `parts` parts from here
    std::uint32_t parts = 0;       // 0: it has no elements
    std::int64_t tied_to = -1;     // index of the tensor whose bytes these are; -1: its own
};

// A run of a tensor's elements, in row-major order, in a slot or, with PayloadMemory::direct, in
// the trainer's tensor. It consists of whole rows unless one row is larger than a slot.
struct TensorPiece {
    std::uint32_t tensor = 0;  // index into Subscriber::tensors()
    std::uint64_t first_element = 0;
    std::uint64_t elements = 0;
    // Read-only memory of the device or host, aligned to 512 B (PayloadMemory::direct: as the
    // trainer's tensor is).
    const std::byte* data = nullptr;
};

}  // namespace rollring
