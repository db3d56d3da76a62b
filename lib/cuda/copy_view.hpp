#pragma once
// One warp copies a tile of a view from a slot into a tensor, with strides of their own on both
// sides. Compiled by nvcc, and by g++ for a test that simulates all lanes.

#include <cstdint>
#include <cstring>

#include "kernel_args.hpp"

#ifdef __CUDACC__
#define ROLLRING_DEVICE __device__ __forceinline__
#define ROLLRING_UNROLL _Pragma("unroll")
#define ROLLRING_LOOP _Pragma("unroll 1")
#else
#define ROLLRING_DEVICE inline
#define ROLLRING_UNROLL
#define ROLLRING_LOOP
#endif

namespace rollring::cuda {

struct ViewTile {
    std::uint64_t to;  // addresses of the view's first unit
    std::uint64_t from;
    std::uint64_t begin;  // first unit of the tile, counted in row-major order
    std::uint32_t units;
    std::uint32_t shift;  // log2 of a unit's bytes
};

ROLLRING_DEVICE ViewTile view_tile(const KernelArgs& args, Tile tile) {
    const DeviceJob& job = args.jobs[tile.job];
    const std::uint64_t most = args.tile_bytes >> job.element_shift;
    const std::uint64_t begin = tile.index * most;
    const std::uint64_t left = job.elements - begin;
    return {job.tensor, args.slot + job.slot_offset, begin,
            static_cast<std::uint32_t>(left < most ? left : most), job.element_shift};
}

#ifdef __CUDACC__
using Vector = uint4;
ROLLRING_DEVICE std::uint64_t upper_half(std::uint64_t a, std::uint64_t b) {
    return __umul64hi(a, b);
}
ROLLRING_DEVICE std::uint32_t word_of(const Vector& vector, std::uint32_t number) {
    return number == 0 ? vector.x : number == 1 ? vector.y : number == 2 ? vector.z : vector.w;
}
template <class Unit>
ROLLRING_DEVICE void load_unit(Unit& unit, std::uint64_t from) {
    unit = __ldg(reinterpret_cast<const Unit*>(from));
}
template <class Unit>
ROLLRING_DEVICE void store_unit(const Unit& unit, std::uint64_t to) {
    __stcs(reinterpret_cast<Unit*>(to), unit);
}
#else
struct alignas(16) Vector {
    std::uint64_t halves[2];
};
ROLLRING_DEVICE std::uint32_t word_of(const Vector& vector, std::uint32_t number) {
    return static_cast<std::uint32_t>(vector.halves[number / 2] >> (32 * (number % 2)));
}
ROLLRING_DEVICE std::uint64_t upper_half(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(Wide{a} * b >> 64);
}
template <class Unit>
ROLLRING_DEVICE void load_unit(Unit& unit, std::uint64_t from) {
    std::memcpy(&unit, reinterpret_cast<const void*>(from), sizeof unit);  // of any type
}
template <class Unit>
ROLLRING_DEVICE void store_unit(const Unit& unit, std::uint64_t to) {
    *reinterpret_cast<Unit*>(to) = unit;
}
#endif

inline constexpr std::uint32_t units_at_once = 4;  // in flight per lane

// The addresses of `count` units on both sides, from their numbers.
template <std::uint32_t count>
ROLLRING_DEVICE void find_units(const Layout& layout, const ViewTile& tile,
                                std::uint64_t (&unit)[count], std::uint64_t (&to)[count],
                                std::uint64_t (&from)[count]) {
    ROLLRING_UNROLL
    for (std::uint32_t j = 0; j < count; j++) {
        to[j] = tile.to;
        from[j] = tile.from;
    }
    ROLLRING_LOOP
    for (auto d = static_cast<std::uint32_t>(layout.dims); d-- > 0;) {
        const std::uint64_t extent = layout.shape[d];
        const std::uint64_t reciprocal = layout.reciprocals[d];
        const auto step_to = static_cast<std::uint64_t>(layout.strides[d]);
        const auto step_from = static_cast<std::uint64_t>(layout.packed_strides[d]);
        ROLLRING_UNROLL
        for (std::uint32_t j = 0; j < count; j++) {
            const std::uint64_t above = upper_half(unit[j], reciprocal);
            const std::uint64_t index = unit[j] - above * extent;
            to[j] += index * step_to;
            from[j] += index * step_from;
            unit[j] = above;
        }
    }
}

// Each lane copies single units, of any row.
template <class Unit>
ROLLRING_DEVICE void copy_units(const ViewTile& tile, const Layout& layout, std::uint32_t lane) {
    ROLLRING_LOOP
    for (std::uint32_t i = lane; i < tile.units; i += units_at_once * warp_lanes) {
        std::uint64_t unit[units_at_once];
        std::uint64_t to[units_at_once];
        std::uint64_t from[units_at_once];
        Unit carried[units_at_once];
        ROLLRING_UNROLL
        // NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result): of small numbers
        for (std::uint32_t j = 0; j < units_at_once; j++) unit[j] = tile.begin + i + j * warp_lanes;
        find_units(layout, tile, unit, to, from);
        ROLLRING_UNROLL
        for (std::uint32_t j = 0; j < units_at_once; j++) {
            if (i + j * warp_lanes < tile.units) load_unit(carried[j], from[j]);
        }
        ROLLRING_UNROLL
        for (std::uint32_t j = 0; j < units_at_once; j++) {
            if (i + j * warp_lanes < tile.units) store_unit(carried[j], to[j]);
        }
    }
}

ROLLRING_DEVICE void copy_view_units(const ViewTile& tile, const Layout& layout,
                                     std::uint32_t lane) {
    if (tile.shift == 4) {
        copy_units<Vector>(tile, layout, lane);
    } else if (tile.shift == 3) {
        copy_units<unsigned long long>(tile, layout, lane);
    } else if (tile.shift == 2) {
        copy_units<std::uint32_t>(tile, layout, lane);
    } else if (tile.shift == 1) {
        copy_units<std::uint16_t>(tile, layout, lane);
    } else {
        copy_units<std::uint8_t>(tile, layout, lane);
    }
}

// For long rows: calls copy(to, from, bytes) for the part of each row in the tile.
template <class Copy>
ROLLRING_DEVICE void copy_view_rows(const ViewTile& tile, const Layout& layout, const Copy& copy) {
    const std::uint32_t last = static_cast<std::uint32_t>(layout.dims) - 1;
    const std::uint64_t extent = layout.shape[last];
    std::uint64_t at = tile.begin;
    std::uint64_t column = at - upper_half(at, layout.reciprocals[last]) * extent;
    ROLLRING_LOOP
    for (std::uint64_t left = tile.units; left > 0;) {
        const std::uint64_t rest = extent - column;
        const std::uint64_t count = left < rest ? left : rest;
        std::uint64_t unit[1] = {at};
        std::uint64_t to[1];
        std::uint64_t from[1];
        find_units(layout, tile, unit, to, from);
        copy(to[0], from[0], static_cast<std::uint32_t>(count << tile.shift));
        at += count;
        left -= count;
        column = 0;
    }
}

}  // namespace rollring::cuda
