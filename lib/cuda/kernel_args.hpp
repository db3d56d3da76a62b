#pragma once
// The tables of a plan in device memory, for its kernels; read by g++ and by nvcc.
//
// A tile is a run of a job's elements that one block copies, or one warp where they are a view:
// `tile_bytes` at the tensor's side, or less at the end of a job. A job without elements has no
// tile.

#include <cstdint>

namespace rollring::cuda {

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned block_threads = 256;
inline constexpr unsigned copy_threads = 128;  // of a block that copies a tile
inline constexpr unsigned dims_max = 6;

struct alignas(16) DeviceJob {
    std::uint64_t tensor;         // contiguous: address of the piece; strided: of element 0
    std::uint64_t slot_offset;    // a multiple of 512; for a view any number
    std::uint64_t elements;       // of the piece
    std::uint64_t first_element;  // of the piece in the tensor; for strided jobs
    std::uint32_t element_shift;  // log2 of an element's bytes (at most 16) at the tensor's side
    std::uint32_t cast;           // device::Cast
    std::uint32_t layout;         // 0: contiguous; else one more than an index into layouts
    std::uint32_t view;           // not view_none: both sides are strided, and elements are units
};
static_assert(sizeof(DeviceJob) == 48);

// A view is copied in units of 1 to 16 bytes that are aligned on both sides, each unit by a lane;
// or row by row, each row by a warp.
enum View : std::uint32_t { view_none, view_units, view_rows };

struct Layout {
    std::uint64_t dims;
    std::uint64_t shape[dims_max + 1];   // one more for the bytes of misaligned elements
    std::int64_t strides[dims_max + 1];  // in bytes
    // For views alone:
    std::int64_t packed_strides[dims_max + 1];  // in bytes, in the slot
    std::uint64_t reciprocals[dims_max + 1];    // the upper half of number * this is number /
                                                // extent; 0 for the outermost
};

struct alignas(8) Tile {
    std::uint32_t job;
    std::uint32_t index;  // in its job
};

struct KernelArgs {
    const Tile* tiles;
    const DeviceJob* jobs;
    const Layout* layouts;
    std::uint64_t tile_count;
    std::uint64_t tile_bytes;
    std::uint64_t tensor;  // not 0: replaces DeviceJob::tensor (all tiles are of one job then)
    std::uint64_t slot;
    std::uint64_t sums;  // address of u64[jobs], zeroed; 0: none
};

}  // namespace rollring::cuda
