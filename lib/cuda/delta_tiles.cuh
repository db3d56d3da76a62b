#pragma once
// A block compares a tile with the slot, and a warp exchanges a tile's entries with the tensor.

#include <type_traits>

#include "copy_run.cuh"
#include "copy_view.hpp"
#include "delta_args.hpp"

namespace rollring::cuda {

struct DeltaTile {
    ViewTile view;         // its first unit; without a layout: the first byte, and units are bytes
    const Layout* layout;  // null: all bytes are adjacent on both sides
    u32 bytes;
    u32 element_shift;
};

__device__ __forceinline__ DeltaTile delta_tile(const DeltaArgs& args, Tile tile) {
    const DeltaJob& job = args.jobs[tile.job];
    const u64 begin = u64{tile.index} * delta_tile_bytes;
    const u64 left = job.bytes - begin;
    const u32 bytes = left < delta_tile_bytes ? static_cast<u32>(left) : delta_tile_bytes;
    DeltaTile made{
        {job.tensor, args.slot + job.slot_offset, begin >> job.unit_shift, 0, job.unit_shift},
        nullptr,
        bytes,
        job.element_shift};
    if (job.layout != 0) {
        made.layout = args.layouts + (job.layout - 1);
    } else {
        made.view.to += begin;
        made.view.from += begin;
    }
    return made;
}

// The addresses of some bytes of the tile on both sides.
template <bool strided, u32 count>
__device__ __forceinline__ void find_bytes(const DeltaTile& tile, const u32 (&byte)[count],
                                           u64 (&to)[count], u64 (&from)[count]) {
    if constexpr (!strided) {
#pragma unroll
        for (u32 j = 0; j < count; j++) {
            to[j] = tile.view.to + byte[j];
            from[j] = tile.view.from + byte[j];
        }
    } else {
        u64 unit[count];
#pragma unroll
        for (u32 j = 0; j < count; j++) unit[j] = tile.view.begin + (byte[j] >> tile.view.shift);
        find_units(*tile.layout, tile.view, unit, to, from);
#pragma unroll
        for (u32 j = 0; j < count; j++) {
            const u32 rest = byte[j] & ((1u << tile.view.shift) - 1);
            to[j] += rest;
            from[j] += rest;
        }
    }
}

// An element at any address.
template <class Element>
__device__ __forceinline__ Element element_at(u64 address) {
    if constexpr (sizeof(Element) > 1) {
        if (address % sizeof(Element) != 0) {
            Element element = 0;
#pragma unroll 1
            for (u32 i = 0; i < sizeof(Element); i++) {
                const Element byte = *reinterpret_cast<const u8*>(address + i);
                element |= byte << (8 * i);
            }
            return element;
        }
    }
    return *reinterpret_cast<const Element*>(address);
}
template <class Element>
__device__ __forceinline__ void put_element(u64 address, Element element) {
    if constexpr (sizeof(Element) > 1) {
        if (address % sizeof(Element) != 0) {
#pragma unroll 1
            for (u32 i = 0; i < sizeof(Element); i++) {
                *reinterpret_cast<u8*>(address + i) = static_cast<u8>(element >> (8 * i));
            }
            return;
        }
    }
    *reinterpret_cast<Element*>(address) = element;
}

__device__ __forceinline__ u32 round_16(u32 bytes) {
    return (bytes + 15) & ~15u;
}

// The block's entries until they are written to the list.
struct DeltaShared {
    alignas(16) u8 values[delta_tile_bytes / delta_share];
    alignas(16) u16 places[delta_tile_bytes / delta_share];
    u32 count;
    u64 entries;  // address; 0: there is no room
};

// Element `number` of a vector.
template <class Element>
__device__ __forceinline__ Element element_of(const uint4& vector, u32 number) {
    if constexpr (sizeof(Element) == 8) {
        const u64 low = number == 0 ? vector.x : vector.z;
        const u64 high = number == 0 ? vector.y : vector.w;
        return static_cast<Element>(low | high << 32);
    } else {
        constexpr u32 each = 4 / sizeof(Element);  // of a word
        return static_cast<Element>(word_of(vector, number / each) >>
                                    (8 * sizeof(Element) * (number % each)));
    }
}

// A bit for each element that differs.
template <class Element>
__device__ __forceinline__ u32 changes_of(const uint4& a, const uint4& b) {
    u32 mask = 0;
    if (((a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w)) == 0) return mask;
#pragma unroll
    for (u32 i = 0; i < 16 / sizeof(Element); i++) {
        mask |= (element_of<Element>(a, i) != element_of<Element>(b, i) ? 1u : 0u) << i;
    }
    return mask;
}

// Room for the changes of all lanes, in their order; called by whole warps.
__device__ __forceinline__ u32 take_room(DeltaShared& shared, u32 changes) {
    const u32 lane = threadIdx.x % warp_lanes;
    u32 sum = changes;
#pragma unroll
    for (u32 step = 1; step < warp_lanes; step *= 2) {
        const u32 below = __shfl_up_sync(all_lanes, sum, step);
        if (lane >= step) sum += below;
    }
    u32 first = 0;
    if (lane == warp_lanes - 1) first = atomicAdd(&shared.count, sum);
    return __shfl_sync(all_lanes, first, warp_lanes - 1) + sum - changes;
}

inline constexpr u32 delta_at_once = 2;  // loads of each side in flight per thread

// Notes the elements in `masks`, of which the first of each is at `byte` of the tile; value(j, i)
// has the values. `most`: as many as there is room for. Called by whole warps.
template <class Element, class Value>
__device__ __forceinline__ void note(DeltaShared& shared, u32 most,
                                     const u32 (&masks)[delta_at_once],
                                     const u32 (&byte)[delta_at_once], const Value& value) {
    u32 changes = 0;
#pragma unroll
    for (u32 j = 0; j < delta_at_once; j++) changes += __popc(masks[j]);
    if (!__any_sync(all_lanes, changes != 0)) return;
    u32 at = take_room(shared, changes);
#pragma unroll
    for (u32 j = 0; j < delta_at_once; j++) {
        for (u32 mask = masks[j]; mask != 0 && at < most; mask &= mask - 1, at++) {
            const u32 i = __ffs(mask) - 1;
            shared.places[at] = static_cast<u16>(byte[j] / sizeof(Element) + i);
            reinterpret_cast<Element*>(shared.values)[at] = value(j, i);
        }
    }
}

// For aligned units of 16 bytes. Returns the elements that were compared.
template <class Element, bool strided>
__device__ __forceinline__ u32 compare_vectors(const DeltaTile& tile, DeltaShared& shared,
                                               u32 most) {
    constexpr u32 each = 16 / sizeof(Element);
    const u32 vectors = tile.bytes / 16;
    for (u32 base = 0; base < vectors; base += delta_at_once * block_threads) {
        u32 byte[delta_at_once];
        u64 to[delta_at_once];
        u64 from[delta_at_once];
        uint4 next[delta_at_once];
        uint4 live[delta_at_once];
#pragma unroll
        for (u32 j = 0; j < delta_at_once; j++) {
            byte[j] = (base + j * block_threads + threadIdx.x) * 16;
        }
        find_bytes<strided>(tile, byte, to, from);
#pragma unroll
        for (u32 j = 0; j < delta_at_once; j++) {
            next[j] = live[j] = {};
            if (byte[j] / 16 >= vectors) continue;
            next[j] = load_once(reinterpret_cast<const uint4*>(from[j]));
            live[j] = load_once(reinterpret_cast<const uint4*>(to[j]));
        }
        u32 masks[delta_at_once];
#pragma unroll
        for (u32 j = 0; j < delta_at_once; j++) masks[j] = changes_of<Element>(next[j], live[j]);
        note<Element>(shared, most, masks, byte,
                      [&](u32 j, u32 i) { return element_of<Element>(next[j], i); });
    }
    return vectors * each;
}

template <class Element, bool strided>
__device__ __forceinline__ void compare_elements(const DeltaTile& tile, DeltaShared& shared,
                                                 u32 most, u32 begin) {
    const u32 end = tile.bytes / sizeof(Element);
    for (u32 base = begin; base < end; base += delta_at_once * block_threads) {
        u32 byte[delta_at_once];
        u64 to[delta_at_once];
        u64 from[delta_at_once];
        Element next[delta_at_once];
        Element live[delta_at_once];
#pragma unroll
        for (u32 j = 0; j < delta_at_once; j++) {
            byte[j] = (base + j * block_threads + threadIdx.x) * sizeof(Element);
        }
        find_bytes<strided>(tile, byte, to, from);
#pragma unroll
        for (u32 j = 0; j < delta_at_once; j++) {
            next[j] = live[j] = 0;
            if (byte[j] / sizeof(Element) >= end) continue;
            next[j] = element_at<Element>(from[j]);
            live[j] = element_at<Element>(to[j]);
        }
        u32 masks[delta_at_once];
#pragma unroll
        for (u32 j = 0; j < delta_at_once; j++) masks[j] = next[j] != live[j] ? 1 : 0;
        note<Element>(shared, most, masks, byte, [&](u32 j, u32) { return next[j]; });
    }
}

// Reserves memory for the entries that were counted; by one thread.
template <class Element>
__device__ __forceinline__ void reserve(const DeltaArgs& args, DeltaHead& head, u32 elements,
                                        u32 most, DeltaShared& shared) {
    using Counter = unsigned long long;
    const bool whole = shared.count > most;
    const u32 count = whole ? elements : shared.count;
    const u32 bytes =
        (whole ? 0 : round_16(count * sizeof(u16))) + round_16(count * sizeof(Element));
    shared.entries = 0;
    head = {0, 0, delta_places};
    if (count == 0) return;
    if (args.only_missing == 0) {
        atomicAdd(reinterpret_cast<Counter*>(&args.counters->changed), Counter{shared.count});
    }
    const u64 at = atomicAdd(reinterpret_cast<Counter*>(&args.counters->used), Counter{bytes});
    if (at + bytes > args.memory_bytes) {
        head.kind = delta_missing;
        atomicAdd(reinterpret_cast<Counter*>(&args.counters->missing), Counter{bytes});
        return;
    }
    shared.entries = args.memory + at;
    head = {shared.entries, count, whole ? delta_whole : delta_places};
}

template <class Element, bool strided>
__device__ __forceinline__ void write_whole(const DeltaTile& tile, u64 entries) {
    const u32 elements = tile.bytes / sizeof(Element);
    u32 begin = 0;
    if (!strided && tile.view.shift == 4) {
        const uint4* vectors = reinterpret_cast<const uint4*>(tile.view.from);
#pragma unroll 4
        for (u32 i = threadIdx.x; i < tile.bytes / 16; i += block_threads) {
            reinterpret_cast<uint4*>(entries)[i] = load_once(vectors + i);
        }
        begin = tile.bytes / 16 * (16 / sizeof(Element));
    }
    for (u32 i = begin + threadIdx.x; i < elements; i += block_threads) {
        const u32 byte[1] = {i * u32{sizeof(Element)}};
        u64 to[1];
        u64 from[1];
        find_bytes<strided>(tile, byte, to, from);
        reinterpret_cast<Element*>(entries)[i] = element_at<Element>(from[0]);
    }
}

template <class Element, bool strided>
__device__ __forceinline__ void write_entries(const DeltaTile& tile, const DeltaShared& shared,
                                              u32 most) {
    if (shared.entries == 0) return;
    if (shared.count > most) return write_whole<Element, strided>(tile, shared.entries);
    const u32 places = round_16(shared.count * sizeof(u16));
    const u32 values = round_16(shared.count * sizeof(Element));
    uint4* to = reinterpret_cast<uint4*>(shared.entries);
    for (u32 i = threadIdx.x; i < places / 16; i += block_threads) {
        to[i] = reinterpret_cast<const uint4*>(shared.places)[i];
    }
    to += places / 16;
    for (u32 i = threadIdx.x; i < values / 16; i += block_threads) {
        to[i] = reinterpret_cast<const uint4*>(shared.values)[i];
    }
}

template <class Element, bool strided>
__device__ __forceinline__ void compare_tile(const DeltaArgs& args, const DeltaTile& tile,
                                             DeltaHead& head, DeltaShared& shared) {
    const u32 elements = tile.bytes / sizeof(Element);
    const u32 most = elements / delta_share;
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    u32 done = 0;
    if (tile.view.shift == 4) done = compare_vectors<Element, strided>(tile, shared, most);
    compare_elements<Element, strided>(tile, shared, most, done);
    __syncthreads();
    if (threadIdx.x == 0) reserve<Element>(args, head, elements, most, shared);
    __syncthreads();
    write_entries<Element, strided>(tile, shared, most);
    __syncthreads();
}

// Several entries a lane are fetched before any is written.
template <class Element, bool strided, bool whole>
__device__ __forceinline__ void exchange_entries(const DeltaTile& tile, const u16* places,
                                                 Element* values, u32 begin, u32 count, u32 lane) {
    constexpr u32 at_once = strided ? 2 : sizeof(Element) == 8 ? 4 : 8;
    for (u32 base = begin + lane; base < count; base += at_once * warp_lanes) {
        u32 byte[at_once];
        u64 to[at_once];
        u64 from[at_once];
        Element next[at_once];
        Element old[at_once];
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            const u32 i = base + j * warp_lanes;
            byte[j] = 0;
            if (i >= count) continue;
            byte[j] = (whole ? i : u32{__ldcs(places + i)}) * sizeof(Element);
            next[j] = __ldcs(values + i);
        }
        find_bytes<strided>(tile, byte, to, from);
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            if (base + j * warp_lanes < count) old[j] = element_at<Element>(to[j]);
        }
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            const u32 i = base + j * warp_lanes;
            if (i >= count) continue;
            put_element<Element>(to[j], next[j]);
            values[i] = old[j];
        }
    }
}

// The whole vectors of a tile without a layout; returns the elements in them.
template <class Element>
__device__ __forceinline__ u32 exchange_vectors(const DeltaTile& tile, u64 entries, u32 lane) {
    constexpr u32 at_once = 2;
    const u32 vectors = tile.bytes / 16;
    uint4* to = reinterpret_cast<uint4*>(tile.view.to);
    uint4* values = reinterpret_cast<uint4*>(entries);
    for (u32 base = lane; base < vectors; base += at_once * warp_lanes) {
        uint4 next[at_once];
        uint4 old[at_once];
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            const u32 i = base + j * warp_lanes;
            if (i >= vectors) continue;
            next[j] = __ldcs(values + i);
            old[j] = __ldcs(to + i);
        }
#pragma unroll
        for (u32 j = 0; j < at_once; j++) {
            const u32 i = base + j * warp_lanes;
            if (i >= vectors) continue;
            to[i] = next[j];
            values[i] = old[j];
        }
    }
    return vectors * (16 / sizeof(Element));
}

template <class Element, bool strided>
__device__ __forceinline__ void exchange_tile(const DeltaTile& tile, const DeltaHead& head,
                                              u32 lane) {
    if (head.kind == delta_whole) {
        u32 done = 0;
        if (!strided && tile.view.shift == 4) {
            done = exchange_vectors<Element>(tile, head.entries, lane);
        }
        exchange_entries<Element, strided, true>(
            tile, nullptr, reinterpret_cast<Element*>(head.entries), done, head.count, lane);
        return;
    }
    const u16* places = reinterpret_cast<const u16*>(head.entries);
    const u64 values = head.entries + round_16(head.count * sizeof(u16));
    exchange_entries<Element, strided, false>(tile, places, reinterpret_cast<Element*>(values), 0,
                                              head.count, lane);
}

// Tiles of one kind: block by block.
template <class Element, bool strided>
__device__ __forceinline__ void compare_tiles(const DeltaArgs& args, DeltaShared& shared) {
    for (u64 at = blockIdx.x; at < args.tile_count; at += gridDim.x) {
        if (args.only_missing != 0 && args.heads[at].kind != delta_missing) continue;
        const DeltaTile tile = delta_tile(args, args.tiles[at]);
        compare_tile<Element, strided>(args, tile, args.heads[at], shared);
    }
}

// Warp by warp; the next head is loaded meanwhile.
template <class Element, bool strided>
__device__ __forceinline__ void exchange_tiles(const DeltaArgs& args) {
    const u32 lane = threadIdx.x % warp_lanes;
    const u64 warps = u64{gridDim.x} * (block_threads / warp_lanes);
    u64 at = u64{blockIdx.x} * (block_threads / warp_lanes) + threadIdx.x / warp_lanes;
    DeltaHead head{};
    if (at < args.tile_count) head = args.heads[at];
    for (; at < args.tile_count; at += warps) {
        DeltaHead next{};
        if (at + warps < args.tile_count) next = args.heads[at + warps];
        if (head.count != 0) {
            exchange_tile<Element, strided>(delta_tile(args, args.tiles[at]), head, lane);
        }
        head = next;
    }
}

// Calls use(element, strided) with an element of the kind's size, and a constant.
template <class Use>
__device__ __forceinline__ void with_kind(u64 kind, const Use& use) {
    constexpr std::integral_constant<bool, false> adjacent;
    constexpr std::integral_constant<bool, true> strided;
    if (kind == 0) return use(u8{}, adjacent);
    if (kind == 1) return use(u16{}, adjacent);
    if (kind == 2) return use(u32{}, adjacent);
    if (kind == 3) return use(0ull, adjacent);
    if (kind == 4) return use(u8{}, strided);
    if (kind == 5) return use(u16{}, strided);
    if (kind == 6) return use(u32{}, strided);
    use(0ull, strided);
}

}  // namespace rollring::cuda
