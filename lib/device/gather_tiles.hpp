#pragma once
// The tables of a gather for a GPU's kernel: read by g++ and by nvcc. A table holds the address of
// most sequences' rows once for all columns; runs of the other sequences' rows are its tiles. One
// warp at a time copies, converts or fills a part of a tile, or of a sequence's rows for one
// target. The kernel computes the number of these parts, because the CPU has little time for long
// sequences.

#include <cstddef>
#include <cstdint>

namespace rollring::device {

// The conversion of the record's bytes into the target's.
enum class GatherKind : std::uint32_t {
    copy1,  // elements, or parts of them, of this many bytes
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

// Rows of a record that become rows of the first targets, the alike ones, and the padding beside
// them in the layout.
struct alignas(16) GatherSequence {
    std::uint64_t from;   // device address of the rows for the first target
    std::uint32_t first;  // row of each target at which padding or rows begin
    std::uint32_t rows;
};

struct alignas(16) GatherTile {
    std::uint64_t from;   // device address, or one of the two below
    std::uint32_t first;  // row of the target
    std::uint32_t rows;   // their number and, above it, the target's number
};
inline constexpr std::uint32_t tile_target_shift = 24;
inline constexpr std::uint32_t tile_rows_max = (1U << tile_target_shift) - 1;
// Filled with the value of this number; filled with ascending numbers from this one on.
inline constexpr std::uint64_t tile_value = std::uint64_t{1} << 63;
inline constexpr std::uint64_t tile_counted = std::uint64_t{1} << 62;

struct alignas(16) GatherTarget {
    std::uint64_t to;
    std::uint32_t row_from_bytes;
    std::uint32_t row_to_bytes;
    GatherKind kind;
    std::uint32_t width;        // bytes of the target's element
    std::uint64_t pad;          // bits of an element of padding; of alike targets
    std::uint32_t part_copied;  // rows of a part that are copied, at most
    std::uint32_t part_filled;  // and that are filled
};

inline constexpr std::size_t gather_targets_max = 64;  // of a table: the limit of a launch

// A warp reads the table for a whole run of work, because a line of PCIe costs as much for one
// entry as for eight.
inline constexpr std::uint32_t run_max = 16;

struct GatherArgs {
    const GatherSequence* sequences;
    // For each sequence, for each alike target but the first: the bytes by which its rows lie ahead
    // of those for the first.
    const std::int32_t* aheads;
    const GatherTile* tiles;
    const std::uint64_t* values;  // as their bits in the target's dtype
    std::uint64_t tile_count;     // of runs of work, each for one warp
    std::uint32_t work;           // pieces of work in all
    std::uint32_t run;            // pieces in a row; a power of two up to run_max
    std::uint32_t of_sequences;   // these come first: the parts of each sequence's alike targets
    std::uint32_t alike;
    std::uint32_t parts;       // of a sequence for one target; shorter ones have empty parts
    std::uint32_t tile_parts;  // the same, of a tile
    std::uint32_t length;  // of a row of a padded layout, for alike targets; 0: it is not padded
    std::uint32_t left;    // 1: the padding is on the left
    GatherTarget targets[gather_targets_max];
};

}  // namespace rollring::device
