#include "ring_geometry.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "human.hpp"
#include "near_bytes.hpp"
#include "rollring/ring.hpp"
#include "round_up.hpp"

namespace rollring {
namespace {

using detail::mib;

// The default size of the overflow file.
constexpr std::uint64_t overflow_spills = 4;
constexpr std::uint64_t overflow_bytes_most = std::uint64_t{64} << 30;

// The sizes of the overflow file, once the spill is known. Returns the mistake; empty if there is
// none.
std::string add_overflow(const RingOptions& options, Geometry& geometry) {
    const bool wanted = !options.overflow_dir.empty();
    if (!wanted && options.overflow_bytes) {
        return "overflow_bytes is set, but overflow_dir is not";
    }
    if (!wanted) return {};
    if (geometry.spill_bytes == 0) {
        return "overflow_dir is set, but spill_bytes is 0: there is no spill to overflow";
    }
    const std::uint64_t most = lane_bytes_max - geometry.spill_bytes;
    const std::uint64_t bytes = options.overflow_bytes.value_or(
        std::min({overflow_spills * geometry.spill_bytes, overflow_bytes_most, most}));
    if (bytes == 0 || bytes > most) {
        return fmt::format(
            "overflow_bytes is {}, must be 1 to {}: together with the spill's {} at most {}",
            human_bytes(bytes), human_bytes(most), human_bytes(geometry.spill_bytes),
            human_bytes(lane_bytes_max));
    }
    geometry.overflow_bytes = round_up(bytes, page_bytes);
    return {};
}

Result<void> validate_sizes(const RingOptions& options) {
    const auto refuse = [](std::string why) {
        return refused(Errc::invalid_argument, std::move(why));
    };
    if (options.lanes < 1 || options.lanes > lanes_max) {
        return refuse(fmt::format("lanes is {}, must be 1 to {}", options.lanes, lanes_max));
    }
    if (options.lane_bytes > lane_bytes_max) {
        return refuse(fmt::format("lane_bytes is {}, must be at most {}",
                                  human_bytes(options.lane_bytes), human_bytes(lane_bytes_max)));
    }
    if (options.journal_records < 1 || options.journal_records > (1U << 24)) {
        return refuse(fmt::format("journal_records is {}, must be 1 to {}",
                                  human_count(options.journal_records), human_count(1U << 24)));
    }
    if (options.spill_bytes.value_or(0) > lane_bytes_max) {
        return refuse(fmt::format("spill_bytes is {}, must be at most {}",
                                  human_bytes(*options.spill_bytes), human_bytes(lane_bytes_max)));
    }
    if (options.group_rows < 1 || options.group_rows > group_rows_max) {
        return refuse(fmt::format("group_rows is {}, must be 1 to {}",
                                  human_count(options.group_rows), human_count(group_rows_max)));
    }
    if (options.requests > requests_max) {
        return refuse(fmt::format("requests is {}, must be at most {}",
                                  human_count(options.requests), human_count(requests_max)));
    }
    if (options.requests != 0 &&
        (options.request_bytes < 1 || options.request_bytes > lane_bytes_max)) {
        return refuse(fmt::format("request_bytes is {}, must be {} to {}",
                                  human_bytes(options.request_bytes), human_bytes(1),
                                  human_bytes(lane_bytes_max)));
    }
    return {};
}

// Room for a few dozen of the longest records, or as much as a small machine allows: all lanes may
// take half of its memory, and one of them an eighth.
std::uint64_t default_lane_bytes(std::uint32_t lanes, std::uint64_t memory_bytes) {
    constexpr std::uint64_t most = 64 * mib;
    constexpr std::uint64_t share_least = 8 * mib;  // six records of 131,072 tokens
    const std::uint64_t share = std::max(memory_bytes / 2 / lanes, share_least);
    return std::max(std::bit_floor(std::min({share, memory_bytes / 8, most})), page_bytes);
}

// As much as is available beside all lanes, less a part for the board of groups and for others. It
// is reserved as it is used, and workers wait for places if it is too small. With an overflow file
// not more than all lanes hold, because the released-bits of both are reserved at once.
std::uint64_t default_spill_bytes(const Geometry& geometry, bool overflows,
                                  std::uint64_t memory_bytes) {
    const std::uint64_t lanes = geometry.lane_count * geometry.lane_bytes;
    const std::uint64_t others = lanes + memory_bytes / 8 + 8 * mib;
    const std::uint64_t beside =
        lanes > memory_bytes / 2 ? memory_bytes / 4 : memory_bytes - std::min(memory_bytes, others);
    std::uint64_t bytes = std::min({beside, memory_bytes / 4 * 3, lane_bytes_max});
    if (overflows) bytes = std::min(bytes, std::clamp(lanes, 256 * mib, lane_bytes_max / 2));
    return round_up(std::max(bytes, std::min(geometry.lane_bytes, lane_bytes_max)), page_bytes);
}

// The longest object of which nothing is reserved yet.
std::uint64_t length_most() {
    std::uint64_t most = ~std::uint64_t{0};
    for (const MemoryBound& bound : memory_bounds()) {
        if (bound.kind == MemoryBound::Kind::object_length) most = std::min(most, bound.total);
        // A trainer maps all of it, beside its other memory.
        if (bound.kind == MemoryBound::Kind::address_space) most = std::min(most, bound.free / 4);
    }
    return most;
}

void choose_sizes(const RingOptions& options, Geometry& geometry) {
    const bool lanes_given = options.lane_bytes != 0;
    const bool spill_given = options.spill_bytes.has_value();
    const std::uint64_t memory = lanes_given && spill_given ? 0 : memory_total();
    geometry.lane_bytes = lanes_given ? round_up(options.lane_bytes, page_bytes)
                                      : default_lane_bytes(options.lanes, memory);
    geometry.spill_bytes =
        spill_given ? round_up(*options.spill_bytes, page_bytes)
                    : default_spill_bytes(geometry, !options.overflow_dir.empty(), memory);
    if (lanes_given && spill_given) return;
    // If the object would be too long, the spill becomes smaller first.
    const std::uint64_t most = length_most();
    const auto too_long = [&] { return geometry.segment_bytes() > most; };
    while (!spill_given && too_long() && geometry.spill_bytes > geometry.lane_bytes) {
        geometry.spill_bytes = round_up(geometry.spill_bytes / 2, page_bytes);
    }
    while (!lanes_given && too_long() && geometry.lane_bytes > mib) geometry.lane_bytes /= 2;
}

}  // namespace

Result<Geometry> detail::geometry_of(const RingOptions& options) {
    if (auto sound = validate_sizes(options); !sound) return std::unexpected(sound.error());
    Geometry geometry{};
    geometry.lane_count = options.lanes;
    geometry.journal_records = options.journal_records;
    geometry.group_rows = options.group_rows;
    choose_sizes(options, geometry);
    geometry.soft_bytes = options.soft_bytes == 0 ? default_soft_bytes() : options.soft_bytes;
    geometry.soft_bytes = std::min(round_up(geometry.soft_bytes, line_bytes), geometry.lane_bytes);
    if (auto wrong = add_overflow(options, geometry); !wrong.empty()) {
        return refused(Errc::invalid_argument, std::move(wrong));
    }
    return geometry;
}

}  // namespace rollring
