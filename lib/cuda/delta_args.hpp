#pragma once
// The arguments of the kernels that compare tensors with a slot and exchange what differs; read by
// g++ and by nvcc.
//
// A tile's entries lie in the list's memory at the address of its head: u16[count] of unit numbers
// in the tile, padded to 16 bytes, then the values of these units; or, where most of them differ,
// the values of all units. A unit is an element, or for a view some adjacent ones (DeviceJob's
// element_shift).

#include <cstdint>

#include "kernel_args.hpp"

namespace rollring::cuda {

inline constexpr std::uint32_t delta_tile_bytes = 32768;
// A tile with more entries than a fourth of its units has all of them.
inline constexpr std::uint32_t delta_share = 4;

struct alignas(16) DeltaHead {
    std::uint64_t entries;  // address
    std::uint32_t count;    // of entries; all units of the tile if `whole`
    std::uint32_t whole;
};
static_assert(sizeof(DeltaHead) == 16);

struct DeltaCounters {
    std::uint64_t used;     // bytes of the list's memory, or more than it has: it is full then
    std::uint64_t changed;  // elements, or bytes of views
};

struct DeltaArgs {
    KernelArgs tables;  // of a part
    DeltaHead* heads;   // by tile
    std::uint64_t memory;
    std::uint64_t memory_bytes;
    DeltaCounters* counters;
    std::uint64_t tile_count;  // eight for each tile where a block takes one
};

}  // namespace rollring::cuda
