#pragma once
// The arguments of the kernels that compare tensors with a slot and exchange differing elements;
// read by g++ and by nvcc.
//
// The entries of a tile lie in the list's memory, at the address in its head: u16[count] of places,
// which are numbers of elements in the tile, padded to 16 bytes, and the values of these elements.
// Where many elements differ, the list has the values of all, without places.

#include <cstdint>

#include "kernel_args.hpp"

namespace rollring::cuda {

inline constexpr std::uint32_t delta_tile_bytes = 32768;
// A tile of which more than a fourth differs has all of its values.
inline constexpr std::uint32_t delta_share = 4;

// A view. Its bytes are counted in row-major order, and cut into tiles.
struct alignas(16) DeltaJob {
    std::uint64_t tensor;  // address of the first element
    std::uint64_t slot_offset;
    std::uint64_t bytes;
    std::uint32_t unit_shift;     // log2 of a unit: up to 16 adjacent bytes, aligned on both sides
    std::uint32_t element_shift;  // log2 of an element's bytes; can be above unit_shift
    std::uint32_t layout;  // of units; 0: all bytes are adjacent; else one more than an index
    std::uint32_t unused[3];
};
static_assert(sizeof(DeltaJob) == 48);

enum DeltaKind : std::uint32_t {
    delta_places,   // the values of the places
    delta_whole,    // the values of all elements
    delta_missing,  // no values: the memory had no room
};

struct alignas(16) DeltaHead {
    std::uint64_t entries;  // address
    std::uint32_t count;    // of elements that have a value there
    std::uint32_t kind;     // DeltaKind
};
static_assert(sizeof(DeltaHead) == 16);

struct DeltaCounters {
    std::uint64_t used;     // bytes of the memory, or more than it has
    std::uint64_t changed;  // elements
    std::uint64_t missing;  // bytes that had no room
};

// Tiles are of one kind in a launch: the log2 of their elements' bytes, and these more with a
// layout.
inline constexpr std::uint32_t delta_strided = 4;
inline constexpr std::uint32_t delta_kinds = 8;

struct DeltaArgs {
    std::uint64_t kind;
    const Tile* tiles;
    DeltaHead* heads;  // of these tiles
    const DeltaJob* jobs;
    const Layout* layouts;
    std::uint64_t tile_count;  // of tiles and heads
    std::uint64_t slot;
    // To compare:
    DeltaCounters* counters;
    std::uint64_t memory;  // address, a multiple of 16
    std::uint64_t memory_bytes;
    std::uint64_t only_missing;  // 1: those tiles that had no room
};

}  // namespace rollring::cuda
