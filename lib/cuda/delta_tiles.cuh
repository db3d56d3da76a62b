#pragma once
// Comparing a tile with the slot, by a block; and exchanging its entries, by a warp.

#include "copy_run.cuh"
#include "copy_view.hpp"
#include "delta_args.hpp"

namespace rollring::cuda {

// A tile's units on both sides: adjacent, or each at an address of its own.
struct DeltaTile {
    ViewTile view;
    const Layout* layout;  // null: adjacent

    __device__ __forceinline__ void find(u32 unit, u64& to, u64& from) const {
        if (layout == nullptr) {
            to = view.to + (u64{unit} << view.shift);
            from = view.from + (u64{unit} << view.shift);
            return;
        }
        u64 number[1] = {view.begin + unit};
        u64 at[1];
        u64 of[1];
        find_units(*layout, view, number, at, of);
        to = at[0];
        from = of[0];
    }
};

__device__ __forceinline__ DeltaTile delta_tile(const KernelArgs& args, Tile tile) {
    const DeviceJob& job = args.jobs[tile.job];
    DeltaTile made{view_tile(args, tile), nullptr};
    if (job.layout != 0) {
        made.layout = args.layouts + (job.layout - 1);
    } else {
        made.view.to += made.view.begin << made.view.shift;
        made.view.from += made.view.begin << made.view.shift;
    }
    return made;
}

// One unit of up to 16 bytes, at any address that its bytes allow.
template <class Unit>
__device__ __forceinline__ Unit unit_at(u64 address) {
    if (sizeof(Unit) == 1 || address % sizeof(Unit) == 0) {
        return *reinterpret_cast<const Unit*>(address);
    }
    Unit unit;
    u8* bytes = reinterpret_cast<u8*>(&unit);
    for (u32 i = 0; i < sizeof(Unit); i++) bytes[i] = reinterpret_cast<const u8*>(address)[i];
    return unit;
}
template <class Unit>
__device__ __forceinline__ void put_unit(u64 address, Unit unit) {
    if (sizeof(Unit) == 1 || address % sizeof(Unit) == 0) {
        *reinterpret_cast<Unit*>(address) = unit;
        return;
    }
    const u8* bytes = reinterpret_cast<const u8*>(&unit);
    for (u32 i = 0; i < sizeof(Unit); i++) reinterpret_cast<u8*>(address)[i] = bytes[i];
}
template <class Unit>
__device__ __forceinline__ bool differ(Unit a, Unit b) {
    return a != b;
}
__device__ __forceinline__ bool differ(uint4 a, uint4 b) {
    return ((a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w)) != 0;
}

__device__ __forceinline__ u32 round_16(u32 bytes) {
    return (bytes + 15) & ~15u;
}

// The block's entries until they are written to the list.
struct DeltaShared {
    alignas(16) u8 values[delta_tile_bytes / delta_share];
    u16 places[delta_tile_bytes / delta_share];
    u32 count;
    u64 entries;  // address; 0: there is no room
};

template <class Unit>
__device__ __forceinline__ void note_unit(DeltaShared& shared, u32 most, u32 at, u32 unit,
                                          Unit value) {
    if (at >= most) return;
    shared.places[at] = static_cast<u16>(unit);
    reinterpret_cast<Unit*>(shared.values)[at] = value;
}

// Both sides aligned to 16 bytes: a vector a thread. Returns the units that it has seen.
template <class Unit>
__device__ __forceinline__ u32 compare_vectors(const DeltaTile& tile, DeltaShared& shared,
                                               u32 most) {
    constexpr u32 each = 16 / sizeof(Unit);
    const u32 vectors = tile.view.units / each;
    for (u32 v = threadIdx.x; v < vectors; v += block_threads) {
        const uint4 next = load_once(reinterpret_cast<const uint4*>(tile.view.from) + v);
        const uint4 live = load_once(reinterpret_cast<const uint4*>(tile.view.to) + v);
        if (!differ(next, live)) continue;
        const Unit* a = reinterpret_cast<const Unit*>(&next);
        const Unit* b = reinterpret_cast<const Unit*>(&live);
        u32 mask = 0;
#pragma unroll
        for (u32 i = 0; i < each; i++) mask |= (differ(a[i], b[i]) ? 1u : 0u) << i;
        u32 at = atomicAdd(&shared.count, __popc(mask));
#pragma unroll
        for (u32 i = 0; i < each; i++) {
            if (mask >> i & 1) note_unit(shared, most, at++, v * each + i, a[i]);
        }
    }
    return vectors * each;
}

template <class Unit>
__device__ __forceinline__ void compare_units(const DeltaTile& tile, DeltaShared& shared,
                                              u32 most) {
    u32 done = 0;
    if (tile.layout == nullptr && ((tile.view.to | tile.view.from) & 15) == 0) {
        done = compare_vectors<Unit>(tile, shared, most);
    }
    for (u32 i = done + threadIdx.x; i < tile.view.units; i += block_threads) {
        u64 to;
        u64 from;
        tile.find(i, to, from);
        const Unit next = unit_at<Unit>(from);
        if (!differ(next, unit_at<Unit>(to))) continue;
        note_unit(shared, most, atomicAdd(&shared.count, 1u), i, next);
    }
}

// Reserves memory for the entries that were counted, by one thread.
template <class Unit>
__device__ __forceinline__ void reserve(const DeltaArgs& args, DeltaHead& head, u32 units,
                                        u32 most, DeltaShared& shared) {
    using Counter = unsigned long long;
    const bool whole = shared.count > most;
    const u32 count = whole ? units : shared.count;
    const u32 bytes =
        (whole ? 0 : round_16(count * sizeof(u16))) + round_16(count * sizeof(Unit));
    shared.entries = 0;
    if (count != 0) {
        const u64 at = atomicAdd(reinterpret_cast<Counter*>(&args.counters->used), Counter{bytes});
        if (at + bytes <= args.memory_bytes) shared.entries = args.memory + at;
        atomicAdd(reinterpret_cast<Counter*>(&args.counters->changed), Counter{shared.count});
    }
    head = {shared.entries, shared.entries == 0 ? 0 : count, whole ? 1u : 0u};
}

template <class Unit>
__device__ __forceinline__ void write_entries(const DeltaTile& tile, const DeltaShared& shared,
                                              u32 most) {
    if (shared.entries == 0) return;
    if (shared.count > most) {
        for (u32 i = threadIdx.x; i < tile.view.units; i += block_threads) {
            u64 to;
            u64 from;
            tile.find(i, to, from);
            reinterpret_cast<Unit*>(shared.entries)[i] = unit_at<Unit>(from);
        }
        return;
    }
    u16* places = reinterpret_cast<u16*>(shared.entries);
    Unit* values =
        reinterpret_cast<Unit*>(shared.entries + round_16(shared.count * sizeof(u16)));
    for (u32 i = threadIdx.x; i < shared.count; i += block_threads) {
        places[i] = shared.places[i];
        values[i] = reinterpret_cast<const Unit*>(shared.values)[i];
    }
}

template <class Unit>
__device__ void compare_tile(const DeltaArgs& args, const DeltaTile& tile, u64 number,
                             DeltaShared& shared) {
    const u32 most = tile.view.units / delta_share;
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    compare_units<Unit>(tile, shared, most);
    __syncthreads();
    if (threadIdx.x == 0) reserve<Unit>(args, args.heads[number], tile.view.units, most, shared);
    __syncthreads();
    write_entries<Unit>(tile, shared, most);
    __syncthreads();
}

// Several entries a lane are fetched before any is written.
template <class Unit>
__device__ void exchange_tile(const DeltaTile& tile, const DeltaHead& head, u32 lane) {
    constexpr u32 at_once = sizeof(Unit) == 16 ? 4 : 8;
    const u16* places = reinterpret_cast<const u16*>(head.entries);
    Unit* values = reinterpret_cast<Unit*>(
        head.entries + (head.whole != 0 ? 0 : round_16(head.count * sizeof(u16))));
    for (u32 base = lane; base < head.count; base += at_once * warp_lanes) {
        u64 to[at_once];
        Unit next[at_once];
        Unit old[at_once];
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            const u32 i = base + j * warp_lanes;
            if (i >= head.count) continue;
            u64 from;
            tile.find(head.whole != 0 ? i : places[i], to[j], from);
            next[j] = values[i];
        }
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            if (base + j * warp_lanes < head.count) old[j] = unit_at<Unit>(to[j]);
        }
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            const u32 i = base + j * warp_lanes;
            if (i >= head.count) continue;
            put_unit<Unit>(to[j], next[j]);
            values[i] = old[j];
        }
    }
}

// Calls use(Unit{}) with the type of a tile's units.
template <class Use>
__device__ __forceinline__ void with_unit(u32 shift, const Use& use) {
    if (shift == 1) {
        use(u16{});
    } else if (shift == 2) {
        use(u32{});
    } else if (shift == 0) {
        use(u8{});
    } else if (shift == 3) {
        use(0ull);
    } else {
        use(uint4{});
    }
}

}  // namespace rollring::cuda
