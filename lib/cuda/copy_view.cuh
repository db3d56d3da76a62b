#pragma once
// How one warp copies a tile of a view: from a slot, where its elements lie in an order of their
// own, into a tensor, where they do, too. Called by whole warps with the same arguments.

#include "copy_run.cuh"
#include "kernel_args.hpp"

namespace rollring::cuda {

struct ViewTile {
    u64 to;  // addresses of the view's first unit
    u64 from;
    u64 begin;  // first unit of the tile, counted in row-major order
    u32 units;
    u32 shift;  // log2 of a unit's bytes
};

inline constexpr u32 units_at_once = 4;  // in flight per lane

// Where `count` units lie on both sides: their numbers become addresses.
template <u32 count>
__device__ __forceinline__ void find_units(const Layout& layout, const ViewTile& tile,
                                           u64 (&unit)[count], u64 (&to)[count],
                                           u64 (&from)[count]) {
#pragma unroll
    for (u32 j = 0; j < count; j++) {
        to[j] = tile.to;
        from[j] = tile.from;
    }
#pragma unroll 1
    for (u32 d = static_cast<u32>(layout.dims); d-- > 0;) {
        const u64 extent = layout.shape[d];
        const u64 reciprocal = layout.reciprocals[d];
        const u64 step_to = static_cast<u64>(layout.strides[d]);
        const u64 step_from = static_cast<u64>(layout.packed_strides[d]);
#pragma unroll
        for (u32 j = 0; j < count; j++) {
            const u64 above = __umul64hi(unit[j], reciprocal);
            const u64 index = unit[j] - above * extent;
            to[j] += index * step_to;
            from[j] += index * step_from;
            unit[j] = above;
        }
    }
}

// A unit per lane, whichever row it is of.
template <class Unit>
__device__ __forceinline__ void copy_units(const ViewTile& tile, const Layout& layout, u32 lane) {
#pragma unroll 1
    for (u32 i = lane; i < tile.units; i += units_at_once * warp_lanes) {
        u64 unit[units_at_once];
        u64 to[units_at_once];
        u64 from[units_at_once];
        Unit carried[units_at_once];
#pragma unroll
        for (u32 j = 0; j < units_at_once; j++) unit[j] = tile.begin + i + j * warp_lanes;
        find_units(layout, tile, unit, to, from);
#pragma unroll
        for (u32 j = 0; j < units_at_once; j++) {
            if (i + j * warp_lanes < tile.units)
                carried[j] = __ldg(reinterpret_cast<const Unit*>(from[j]));
        }
#pragma unroll
        for (u32 j = 0; j < units_at_once; j++) {
            if (i + j * warp_lanes < tile.units) __stcs(reinterpret_cast<Unit*>(to[j]), carried[j]);
        }
    }
}

// Long rows: a run for each.
__device__ __forceinline__ void copy_view_rows(const ViewTile& tile, const Layout& layout,
                                               u32 lane) {
    const u64 extent = layout.shape[layout.dims - 1];
    u64 at = tile.begin;
    u64 column = at - __umul64hi(at, layout.reciprocals[layout.dims - 1]) * extent;
#pragma unroll 1
    for (u64 left = tile.units; left > 0;) {
        const u64 count = min(left, extent - column);
        const u32 bytes = static_cast<u32>(count << tile.shift);
        u64 unit[1] = {at};
        u64 to[1];
        u64 from[1];
        find_units(layout, tile, unit, to, from);
        copy_run<cast_none, false, true>(reinterpret_cast<u8*>(to[0]),
                                         reinterpret_cast<const u8*>(from[0]), bytes, bytes, 0,
                                         lane);
        at += count;
        left -= count;
        column = 0;
    }
}

__device__ __forceinline__ void copy_view_units(const ViewTile& tile, const Layout& layout,
                                                u32 lane) {
    if (tile.shift == 4) {
        copy_units<uint4>(tile, layout, lane);
    } else if (tile.shift == 3) {
        copy_units<unsigned long long>(tile, layout, lane);
    } else if (tile.shift == 2) {
        copy_units<u32>(tile, layout, lane);
    } else if (tile.shift == 1) {
        copy_units<u16>(tile, layout, lane);
    } else {
        copy_units<u8>(tile, layout, lane);
    }
}

}  // namespace rollring::cuda
