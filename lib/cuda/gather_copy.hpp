#pragma once
// One warp copies, converts or fills the rows of a tile. Each lane loads 16 aligned bytes of the
// record at a time, because reads over PCIe should be whole lines, and stores them word by word,
// because the target may have any alignment. Read by nvcc, and by g++ for a test that simulates all
// lanes.
//
// Loads cover the whole units of 16 bytes in which the rows lie: records are padded to that size.

#include <bit>
#include <cstdint>

#include "copy_view.hpp"
#include "gather_tiles.hpp"

namespace rollring::cuda {

using device::GatherKind;

// Stores a word of four bytes of the record, which is `at` bytes behind the first row (before it:
// below zero), as elements of the target. Only bytes [0, bytes) count.
template <std::uint32_t width>
ROLLRING_DEVICE void put_copied(std::uint64_t to, std::uint32_t word, std::int64_t at,
                                std::int64_t bytes) {
    if (width == 4 ||
        (at >= 0 && at + 4 <= bytes && (to + static_cast<std::uint64_t>(at)) % 4 == 0)) {
        if (at >= 0 && at < bytes) *reinterpret_cast<std::uint32_t*>(to + at) = word;
        return;
    }
    ROLLRING_UNROLL
    for (std::uint32_t j = 0; j < 4; j += width) {
        if (at + j < 0 || at + j >= bytes) continue;
        if (width == 2) {
            *reinterpret_cast<std::uint16_t*>(to + at + j) =
                static_cast<std::uint16_t>(word >> (8 * j));
        } else {
            *reinterpret_cast<std::uint8_t*>(to + at + j) =
                static_cast<std::uint8_t>(word >> (8 * j));
        }
    }
}

template <std::uint32_t width, class To, class Convert>
ROLLRING_DEVICE void put_converted(std::uint64_t to, std::uint32_t word, std::int64_t at,
                                   std::int64_t bytes, Convert convert) {
    ROLLRING_UNROLL
    for (std::uint32_t j = 0; j < 4; j += width) {
        if (at + j < 0 || at + j >= bytes) continue;
        const std::uint32_t mask = width == 4 ? ~0U : (1U << (8 * width)) - 1;
        reinterpret_cast<To*>(to)[(at + j) / width] = convert((word >> (8 * j)) & mask);
    }
}

// Rounded to the nearest, ties to even.
ROLLRING_DEVICE std::uint16_t bf16_of(std::uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

ROLLRING_DEVICE std::uint32_t float_bits(std::uint32_t number) {
    const auto value = static_cast<float>(number);
#ifdef __CUDACC__
    return __float_as_uint(value);
#else
    return std::bit_cast<std::uint32_t>(value);
#endif
}

template <GatherKind kind>
ROLLRING_DEVICE void put_word(std::uint64_t to, std::uint32_t word, std::int64_t at,
                              std::int64_t bytes) {
    using u32 = std::uint32_t;
    if constexpr (kind == GatherKind::copy1) put_copied<1>(to, word, at, bytes);
    if constexpr (kind == GatherKind::copy2) put_copied<2>(to, word, at, bytes);
    if constexpr (kind == GatherKind::copy4) put_copied<4>(to, word, at, bytes);
    if constexpr (kind == GatherKind::u8_bool) {
        put_converted<1, std::uint8_t>(
            to, word, at, bytes, [](u32 value) { return static_cast<std::uint8_t>(value != 0); });
    }
    if constexpr (kind == GatherKind::u8_i32) {
        put_converted<1, u32>(to, word, at, bytes, [](u32 value) { return value; });
    }
    if constexpr (kind == GatherKind::u8_i64) {
        put_converted<1, std::uint64_t>(to, word, at, bytes, [](u32 value) { return value; });
    }
    if constexpr (kind == GatherKind::u8_f32) {
        put_converted<1, u32>(to, word, at, bytes, [](u32 value) { return float_bits(value); });
    }
    if constexpr (kind == GatherKind::u8_bf16) {
        put_converted<1, std::uint16_t>(to, word, at, bytes, [](u32 value) {
            return static_cast<std::uint16_t>(float_bits(value) >> 16);
        });
    }
    if constexpr (kind == GatherKind::u16_i32) {
        put_converted<2, u32>(to, word, at, bytes, [](u32 value) { return value; });
    }
    if constexpr (kind == GatherKind::u16_i64) {
        put_converted<2, std::uint64_t>(to, word, at, bytes, [](u32 value) { return value; });
    }
    if constexpr (kind == GatherKind::i32_i64) {
        put_converted<4, std::int64_t>(to, word, at, bytes, [](u32 value) {
            return std::int64_t{static_cast<std::int32_t>(value)};
        });
    }
    if constexpr (kind == GatherKind::f32_bf16) {
        put_converted<4, std::uint16_t>(to, word, at, bytes, bf16_of);
    }
}

// Waits for earlier work of the stream (programmatic dependent launch): records are read while that
// work may still run, and nothing is written before it has ended. Gpu::load decides which machine
// code supports this. A CPU that simulates a lane has no queue.
#ifdef __CUDACC__
ROLLRING_DEVICE void wait_for_earlier();
#else
inline void wait_for_earlier() {}
#endif

inline constexpr std::uint32_t gather_loads = 4;  // of 16 bytes, in flight per lane

template <GatherKind kind>
ROLLRING_DEVICE void copy_rows_of(std::uint64_t to, std::uint64_t from, std::uint32_t bytes,
                                  std::uint32_t lane) {
    constexpr std::uint32_t line = 128;
    constexpr std::uint32_t step = warp_lanes * 16;
    const auto skip = static_cast<std::uint32_t>(from % line);
    const std::uint32_t end = skip + bytes;
    for (std::uint32_t begin = lane * 16; begin < end; begin += gather_loads * step) {
        Vector vectors[gather_loads];
        ROLLRING_UNROLL
        for (std::uint32_t i = 0; i < gather_loads; i++) {
            const std::uint32_t at = begin + i * step;
            if (at < end && at + 16 > skip) load_unit(vectors[i], from - skip + at);
        }
        wait_for_earlier();
        ROLLRING_UNROLL
        for (std::uint32_t i = 0; i < gather_loads; i++) {
            const std::uint32_t at = begin + i * step;
            if (at >= end || at + 16 <= skip) continue;
            ROLLRING_UNROLL
            for (std::uint32_t w = 0; w < 4; w++) {
                put_word<kind>(to, word_of(vectors[i], w), std::int64_t{at + 4 * w} - skip, bytes);
            }
        }
    }
}

template <class Value>
ROLLRING_DEVICE void fill_elements(std::uint64_t to, std::uint64_t count, Value value,
                                   std::uint64_t step, std::uint32_t lane) {
    for (std::uint64_t i = lane; i < count; i += warp_lanes) {
        reinterpret_cast<Value*>(to)[i] = static_cast<Value>(value + i * step);
    }
}

// NOLINTNEXTLINE(readability-function-size): all of them are registers
ROLLRING_DEVICE void fill_rows_of(const device::GatherTarget& target, std::uint64_t to,
                                  std::uint32_t rows, std::uint64_t value, std::uint64_t step,
                                  std::uint32_t lane) {
    wait_for_earlier();
    const std::uint64_t count = std::uint64_t{rows} * target.row_to_bytes / target.width;
    switch (target.width) {
        case 1:
            return fill_elements(to, count, static_cast<std::uint8_t>(value), step, lane);
        case 2:
            return fill_elements(to, count, static_cast<std::uint16_t>(value), step, lane);
        case 4:
            return fill_elements(to, count, static_cast<std::uint32_t>(value), step, lane);
        default:
            return fill_elements(to, count, value, step, lane);
    }
}

ROLLRING_DEVICE void take_rows_of(const device::GatherTarget& target, std::uint64_t to,
                                  std::uint64_t from, std::uint32_t rows, std::uint32_t lane) {
    const std::uint32_t bytes = rows * target.row_from_bytes;
    switch (target.kind) {
#define ROLLRING_KIND(kind) \
    case GatherKind::kind:  \
        return copy_rows_of<GatherKind::kind>(to, from, bytes, lane);
        ROLLRING_KIND(copy1)
        ROLLRING_KIND(copy2)
        ROLLRING_KIND(copy4)
        ROLLRING_KIND(u8_bool)
        ROLLRING_KIND(u8_i32)
        ROLLRING_KIND(u8_i64)
        ROLLRING_KIND(u8_f32)
        ROLLRING_KIND(u8_bf16)
        ROLLRING_KIND(u16_i32)
        ROLLRING_KIND(u16_i64)
        ROLLRING_KIND(i32_i64)
        ROLLRING_KIND(f32_bf16)
#undef ROLLRING_KIND
    }
}

// A part: rows that are copied, or filled with a value, or numbered; then rows of padding.
struct GatherWork {
    std::uint64_t from;  // an address; or the value, or the first number
    std::uint32_t target;
    std::uint32_t what;
    std::uint32_t first;  // row of the target
    std::uint32_t rows;
    std::uint32_t padding_first;
    std::uint32_t padding;
};
enum GatherWhat : std::uint32_t { gather_copied, gather_value, gather_counted };

// The first row of part number `part`, if `all` rows are divided into parts of at most `most`.
ROLLRING_DEVICE std::uint32_t part_begin(std::uint32_t all, std::uint32_t part,
                                         std::uint32_t most) {
    const std::uint64_t begin = std::uint64_t{part} * most;
    return begin < all ? static_cast<std::uint32_t>(begin) : all;
}
ROLLRING_DEVICE std::uint32_t part_count(std::uint32_t all, std::uint32_t begin,
                                         std::uint32_t most) {
    return all - begin < most ? all - begin : most;
}

ROLLRING_DEVICE GatherWork sequence_work(const device::GatherArgs& args, std::uint32_t at) {
    const std::uint32_t column = at / args.parts;
    const std::uint32_t part = at - column * args.parts;
    const std::uint32_t sequence = column / args.alike;
    const std::uint32_t number = column - sequence * args.alike;
    Vector words;
    load_unit(words, reinterpret_cast<std::uint64_t>(args.sequences + sequence));
    std::int32_t ahead = 0;
    if (number != 0) {
        const std::uint64_t of = std::uint64_t{sequence} * (args.alike - 1) + number - 1;
        load_unit(ahead, reinterpret_cast<std::uint64_t>(args.aheads + of));
    }
    const device::GatherTarget& target = args.targets[number];
    const std::uint32_t first = word_of(words, 2);
    const std::uint32_t rows = word_of(words, 3);
    const std::uint32_t padding = args.length == 0 ? 0 : args.length - rows;
    const std::uint32_t begin = part_begin(rows, part, target.part_copied);
    const std::uint32_t padding_begin = part_begin(padding, part, target.part_filled);
    GatherWork work{};
    work.from = (std::uint64_t{word_of(words, 1)} << 32 | word_of(words, 0)) +
                static_cast<std::uint64_t>(std::int64_t{ahead}) +
                std::uint64_t{begin} * target.row_from_bytes;
    work.target = number;
    work.first = first + args.left * padding + begin;
    work.rows = part_count(rows, begin, target.part_copied);
    work.padding_first = first + (args.left == 0 ? rows : 0) + padding_begin;
    work.padding = part_count(padding, padding_begin, target.part_filled);
    return work;
}

ROLLRING_DEVICE GatherWork tile_work(const device::GatherArgs& args, std::uint32_t at) {
    const std::uint32_t tile = at / args.tile_parts;
    const std::uint32_t part = at - tile * args.tile_parts;
    Vector words;
    load_unit(words, reinterpret_cast<std::uint64_t>(args.tiles + tile));
    const std::uint64_t from = std::uint64_t{word_of(words, 1)} << 32 | word_of(words, 0);
    const std::uint32_t rows = word_of(words, 3) & device::tile_rows_max;
    GatherWork work{};
    work.target = word_of(words, 3) >> device::tile_target_shift;
    const device::GatherTarget& target = args.targets[work.target];
    work.what = (from & device::tile_value) != 0     ? gather_value
                : (from & device::tile_counted) != 0 ? gather_counted
                                                     : gather_copied;
    const std::uint32_t most = work.what == gather_copied ? target.part_copied : target.part_filled;
    const std::uint32_t begin = part_begin(rows, part, most);
    work.first = word_of(words, 2) + begin;
    work.rows = part_count(rows, begin, most);
    if (work.what == gather_copied) {
        work.from = from + std::uint64_t{begin} * target.row_from_bytes;
    } else if (work.what == gather_counted) {
        work.from = (from & ~device::tile_counted) + begin;
    } else {
        const std::uint64_t number = from & ~device::tile_value;
        load_unit(work.from, reinterpret_cast<std::uint64_t>(args.values + number));
    }
    return work;
}

ROLLRING_DEVICE GatherWork load_work(const device::GatherArgs& args, std::uint32_t at) {
    return at < args.of_sequences ? sequence_work(args, at)
                                  : tile_work(args, at - args.of_sequences);
}

// Padding comes last: records are read before anything may be written.
ROLLRING_DEVICE void gather_work(const device::GatherArgs& args, const GatherWork& work,
                                 std::uint32_t lane) {
    const device::GatherTarget& target = args.targets[work.target];
    const std::uint64_t to = target.to + std::uint64_t{work.first} * target.row_to_bytes;
    if (work.rows == 0) {
        // The part is empty, because the sequence is short or has no tokens: the record is not
        // read.
    } else if (work.what == gather_copied) {
        take_rows_of(target, to, work.from, work.rows, lane);
    } else {
        fill_rows_of(target, to, work.rows, work.from, work.what == gather_counted ? 1 : 0, lane);
    }
    if (work.padding == 0) return;
    const std::uint64_t padding_to =
        target.to + std::uint64_t{work.padding_first} * target.row_to_bytes;
    fill_rows_of(target, padding_to, work.padding, target.pad, 0, lane);
}

}  // namespace rollring::cuda
