#pragma once
// What a gather lays down for a GPU's kernel: read by g++ and by nvcc. Rows of all columns, cut
// into tiles that one warp each copies, converts or fills.

#include <cstddef>
#include <cstdint>

namespace rollring::device {

// How a target's bytes are made of the record's.
enum class GatherKind : std::uint32_t {
    copy1,  // elements, or parts of them, of so many bytes
    copy2,
    copy4,
    u8_bool,
    u8_i32,
    u8_i64,
    u8_f32,
    u8_bf16,
    u16_i32,
    u16_i64,
    i32_i64,
    f32_bf16,
};

struct alignas(16) GatherTile {
    std::uint64_t from;   // an address of the device; or one of the two below
    std::uint32_t first;  // row of the target
    std::uint32_t rows;   // how many, and above them the number of the target
};
inline constexpr std::uint32_t tile_target_shift = 24;
inline constexpr std::uint32_t tile_rows_max = (1U << tile_target_shift) - 1;
// Filled with the value of that number; filled with numbers from that one on.
inline constexpr std::uint64_t tile_value = std::uint64_t{1} << 63;
inline constexpr std::uint64_t tile_counted = std::uint64_t{1} << 62;

struct alignas(16) GatherTarget {
    std::uint64_t to;
    std::uint32_t row_from_bytes;
    std::uint32_t row_to_bytes;
    GatherKind kind;
    std::uint32_t width;  // bytes of the target's element
};

inline constexpr std::size_t gather_targets_max = 64;  // of a table: what a launch can be given

struct GatherArgs {
    const GatherTile* tiles;
    const std::uint64_t* values;  // as their bits in the target's dtype
    std::uint64_t tile_count;
    GatherTarget targets[gather_targets_max];
};

}  // namespace rollring::device
