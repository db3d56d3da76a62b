#pragma once
// A warp or a block copies a run of bytes of any alignment by 16-byte loads and stores. If the two
// sides are not aligned to each other, stores are aligned, loads read the aligned words around, and
// each lane composes a vector from its word and that of its neighbour.
//
// Nothing is read outside [from, from + readable), except for bytes before `from` in its 16-byte
// word. All threads of a team call all functions, with the same arguments but for `thread`.

#include <cstdint>

#include "checksum.hpp"
#include "kernel_args.hpp"

namespace rollring::cuda {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

inline constexpr unsigned all_lanes = 0xffffffff;
enum CastTo : u32 { cast_none, cast_bf16, cast_f16 };

// The threads that copy a run together, and the 16-byte loads that each has in flight.
template <u32 threads_, u32 rows_>
struct Team {
    static constexpr u32 threads = threads_;
    static constexpr u32 rows = rows_;
};
// For short runs.
using Warp = Team<warp_lanes, 8>;
// For rows of a tile, of which the warps of a block copy several at once.
using WarpOfBlock = Team<warp_lanes, 2>;
// For tiles. More loads in flight are slower: the memory is fastest where the addresses that a
// block uses at once are near each other.
using Block = Team<copy_threads, 1>;
// For tiles of another GPU's memory: a link needs many bytes under way, from a few blocks.
using BlockOverLink = Team<copy_threads, 8>;

__device__ __forceinline__ uint4 load(const uint4* at) {
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at));
    return value;
}

// Of memory that no kernel writes meanwhile, and that is read once, so that L1 is of no use.
__device__ __forceinline__ uint4 load_once(const uint4* at) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at));
    return value;
}

// 16 bytes from byte `skew` of the 32 in low, high.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, u32 skew) {
    const bool two = skew & 8;
    const u32 a0 = two ? low.z : low.x;
    const u32 a1 = two ? low.w : low.y;
    const u32 a2 = two ? high.x : low.z;
    const u32 a3 = two ? high.y : low.w;
    const u32 a4 = two ? high.z : high.x;
    const u32 a5 = two ? high.w : high.y;
    const bool one = skew & 4;
    const u32 b0 = one ? a1 : a0;
    const u32 b1 = one ? a2 : a1;
    const u32 b2 = one ? a3 : a2;
    const u32 b3 = one ? a4 : a3;
    const u32 b4 = one ? a5 : a4;
    const u32 bits = (skew & 3) * 8;
    return {__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits),
            __funnelshift_r(b2, b3, bits), __funnelshift_r(b3, b4, bits)};
}

// The word behind each lane's own: its neighbour's and, for the last lane, `beyond` of the first.
__device__ __forceinline__ uint4 neighbour(uint4 row, uint4 beyond, u32 lane) {
    const u32 from = (lane + 1) % warp_lanes;
    const uint4 give = lane == 0 ? beyond : row;
    return {__shfl_sync(all_lanes, give.x, from), __shfl_sync(all_lanes, give.y, from),
            __shfl_sync(all_lanes, give.z, from), __shfl_sync(all_lanes, give.w, from)};
}

// Two f32 as bf16 or f16 in one word, rounded to nearest even; NaN becomes 0x7fff.
template <u32 cast>
__device__ __forceinline__ u32 rounded(u32 low, u32 high) {
    u32 packed;
    if constexpr (cast == cast_bf16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
            : "=r"(packed)
            : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;"
            : "=r"(packed)
            : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
    }
    return packed;
}

// Up to 4 bytes, little-endian, from any address.
__device__ __forceinline__ u32 bytes_at(const u8* from, u32 count) {
    u32 word = 0;
    for (u32 i = 0; i < count; i++) word |= static_cast<u32>(from[i]) << (8 * i);
    return word;
}

// Stores one vector of the source; `index` counts vectors.
template <u32 cast, bool with_sums>
__device__ __forceinline__ void put(u8* to, u32 index, uint4 value, u64 word, u64& sum) {
    using device::mix_word;
    if constexpr (cast == cast_none) {
        reinterpret_cast<uint4*>(to)[index] = value;
        if constexpr (with_sums) {
            const u64 at = word + u64{index} * 4;
            sum += mix_word(value.x, at) + mix_word(value.y, at + 1) + mix_word(value.z, at + 2) +
                   mix_word(value.w, at + 3);
        }
    } else {
        const uint2 half = {rounded<cast>(value.x, value.y), rounded<cast>(value.z, value.w)};
        __stcs(reinterpret_cast<uint2*>(to) + index, half);
        if constexpr (with_sums) {
            const u64 at = word + u64{index} * 2;
            sum += mix_word(half.x, at) + mix_word(half.y, at + 1);
        }
    }
}

// Up to Team::rows rows of vectors from `base` on; `full`: all of them below `vectors`.
template <u32 cast, bool with_sums, bool skewed, bool full, class Team>
__device__ __forceinline__ void put_rows(u8* to, const uint4* words, u32 base, u32 vectors,
                                         u32 skew, u64 word, u32 thread, u64& sum) {
    const u32 words_end = skewed ? vectors + 1 : vectors;
    const u32 lane = thread % warp_lanes;
    uint4 row[Team::rows];
    uint4 beyond[Team::rows];  // in lane 0: the word behind the warp's own
#pragma unroll
    for (u32 j = 0; j < Team::rows; j++) {
        const u32 index = base + j * Team::threads + thread;
        row[j] = {};
        if (full || index < words_end) row[j] = load(words + index);
        if constexpr (skewed) {
            const bool is_next_row = Team::threads == warp_lanes && j + 1 < Team::rows;
            const u32 behind = index + warp_lanes;
            beyond[j] = {};
            if (!is_next_row && lane == 0 && (full || behind < words_end)) {
                beyond[j] = load(words + behind);
            }
        }
    }
#pragma unroll
    for (u32 j = 0; j < Team::rows; j++) {
        const u32 index = base + j * Team::threads + thread;
        uint4 value = row[j];
        if constexpr (skewed) {
            const bool is_next_row = Team::threads == warp_lanes && j + 1 < Team::rows;
            const uint4 behind = is_next_row ? row[(j + 1) % Team::rows] : beyond[j];
            value = shifted(value, neighbour(value, behind, lane), skew);
        }
        if (full || index < vectors) put<cast, with_sums>(to, index, value, word, sum);
    }
}

template <u32 cast, bool with_sums, bool skewed, class Team>
__device__ __forceinline__ void put_vectors(u8* to, const uint4* words, u32 vectors, u32 skew,
                                            u64 word, u32 thread, u64& sum) {
    constexpr u32 step = Team::rows * Team::threads;
    u32 base = 0;
    for (; base + step <= vectors; base += step) {
        put_rows<cast, with_sums, skewed, true, Team>(to, words, base, vectors, skew, word, thread,
                                                      sum);
    }
    if (base < vectors) {
        put_rows<cast, with_sums, skewed, false, Team>(to, words, base, vectors, skew, word, thread,
                                                       sum);
    }
}

// The last bytes of a run, below 32: a packed word per thread. `to` is aligned to 4.
template <u32 cast, bool with_sums>
__device__ __forceinline__ void put_tail(u8* to, const u8* from, u32 bytes, u64 word, u32 thread,
                                         u64& sum) {
    constexpr u32 source = cast == cast_none ? 4 : 8;  // bytes that make a packed word
    const u32 begin = thread * source;
    if (begin >= bytes) return;
    const u32 count = min(source, bytes - begin);
    u32 value = 0;
    u32 packed_bytes = count;
    if constexpr (cast == cast_none) {
        value = bytes_at(from + begin, count);
    } else {
        const u32 second = count == 8 ? bytes_at(from + begin + 4, 4) : 0;
        value = rounded<cast>(bytes_at(from + begin, 4), second);
        packed_bytes = count / 2;
    }
    if constexpr (with_sums) sum += device::mix_word(value, word + thread);
    to += thread * 4;
    if (packed_bytes == 4) {
        *reinterpret_cast<u32*>(to) = value;
    } else {
        for (u32 i = 0; i < packed_bytes; i++) to[i] = static_cast<u8>(value >> (8 * i));
    }
}

// Copies `bytes` (below 2^31) from `from`, with a cast if asked to. `to` is aligned to 16 (8 with a
// cast) unless any_to allows any address. With sums, `word` is the index of the first packed word,
// and the return value is the sum of the words that this thread has seen.
template <u32 cast, bool with_sums, bool any_to, class Team>
__device__ __forceinline__ u64 copy_run(u8* to, const u8* from, u32 bytes, u64 readable, u64 word,
                                        u32 thread) {
    static_assert(!any_to || (cast == cast_none && !with_sums));
    u64 sum = 0;
    if constexpr (any_to) {
        const u32 head = min(static_cast<u32>(-reinterpret_cast<u64>(to) & 15), bytes);
        if (thread < head) to[thread] = from[thread];
        to += head;
        from += head;
        bytes -= head;
        readable -= head;
    }
    const u32 skew = reinterpret_cast<u64>(from) & 15;
    const uint4* words = reinterpret_cast<const uint4*>(from - skew);
    u32 vectors = bytes / 16;
    if (skew == 0) {
        put_vectors<cast, with_sums, false, Team>(to, words, vectors, 0, word, thread, sum);
    } else {
        // A vector needs the word behind its own, which must lie below the end of the readable
        // bytes.
        const u64 whole = (skew + readable) / 16;
        if (whole < u64{vectors} + 1) vectors = whole == 0 ? 0 : static_cast<u32>(whole - 1);
        put_vectors<cast, with_sums, true, Team>(to, words, vectors, skew, word, thread, sum);
    }
    const u32 done = vectors * 16;
    constexpr u32 ratio = cast == cast_none ? 1 : 2;
    put_tail<cast, with_sums>(to + done / ratio, from + done, bytes - done, word + done / ratio / 4,
                              thread, sum);
    return sum;
}

}  // namespace rollring::cuda
