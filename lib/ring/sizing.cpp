#include "rollring/ring.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "geometry.hpp"
#include "human.hpp"
#include "ring_geometry.hpp"
#include "round_up.hpp"

namespace rollring {
namespace {

using detail::mib;

// A frame, a header, a directory of columns and a name; rounded up.
constexpr std::uint64_t record_overhead_bytes = 512;
// With room for this many of its longest records, a lane accepts records while the trainer steps,
// and a record of an open group in it does not block its producer (GroupRoom::lane_share).
constexpr std::uint64_t records_a_lane = 16;

// The least memory of a ring, lanes and a trainer, with all lanes in use.
std::uint64_t taken_bytes(const Geometry& geometry) {
    return geometry.fixed_bytes() + geometry.taken_bytes();
}

std::string overcommitted(const Geometry& geometry) {
    const MemoryBound least = least_memory_bound();
    const std::uint64_t all = taken_bytes(geometry);
    if (all <= least.free) return {};
    const std::uint64_t others = all - geometry.lane_count * geometry.stride(0);
    const std::uint64_t lanes = (least.free - std::min(least.free, others)) / geometry.stride(0);
    return fmt::format(
        "{} lanes of {} and a trainer take {} once every lane is in use, but {} has {} free of {}: "
        "enough for {} of them. `rollring size` says what a run needs; fewer or smaller lanes "
        "(--lanes, --lane-bytes) take less",
        geometry.lane_count, human_bytes(geometry.lane_bytes), human_bytes(all), least.name,
        human_bytes(least.free), human_bytes(least.total), lanes);
}

std::string chosen_by(const RingOptions& options) {
    std::string sizes = options.lane_bytes == 0 ? "lane bytes" : "";
    if (!options.spill_bytes) sizes += sizes.empty() ? "spill bytes" : " and spill bytes";
    if (sizes.empty()) return {};
    MemoryBound least{MemoryBound::Kind::machine, "", 0, ~std::uint64_t{0}, ""};
    for (const MemoryBound& bound : memory_bounds()) {
        if (bound.of_pages() && bound.total < least.total) least = bound;
    }
    if (least.name.empty()) return sizes + " chosen without knowing how much memory there is";
    return fmt::format("{} chosen for the {} of {}", sizes, human_bytes(least.total), least.name);
}

}  // namespace

Result<RingPlan> plan_ring(const RingOptions& options) {
    const auto geometry = detail::geometry_of(options);
    if (!geometry) return std::unexpected(geometry.error());
    return RingPlan{geometry->lane_bytes, geometry->spill_bytes, taken_bytes(*geometry),
                    chosen_by(options), overcommitted(*geometry)};
}

Result<RunSizes> size_run(const RunShape& shape) {
    RunSizes sizes{};
    sizes.record_bytes = round_up(
        record_overhead_bytes + std::uint64_t{shape.tokens} * shape.token_bytes, line_bytes);
    sizes.lane_bytes = std::max(std::bit_ceil(records_a_lane * sizes.record_bytes), 4 * mib);
    const std::uint64_t group = shape.group_size * sizes.record_bytes;
    const std::uint64_t open = shape.producers * group;
    const std::uint64_t ready = 2 * std::uint64_t{shape.batch_groups} * group;
    const std::uint64_t wanted = round_up((open + ready) / 3 * 4, mib);
    sizes.spill_bytes = std::min(wanted, lane_bytes_max);
    const auto geometry = detail::geometry_of({.lanes = shape.producers,
                                               .lane_bytes = sizes.lane_bytes,
                                               .spill_bytes = sizes.spill_bytes});
    if (!geometry) return std::unexpected(geometry.error());
    const std::uint64_t bits = geometry->lane_count * geometry->bits_bytes(0) +
                               geometry->bits_bytes(geometry->spill_lane());
    sizes.lanes_bytes = geometry->lane_count * geometry->lane_bytes;
    sizes.fixed_bytes = geometry->fixed_bytes() + geometry->board_bytes() + bits;
    sizes.memory_bytes = sizes.fixed_bytes + sizes.lanes_bytes + sizes.spill_bytes;
    sizes.why = {
        fmt::format("a record: {} tokens x {} B + {} B of header = {}", human_count(shape.tokens),
                    shape.token_bytes, record_overhead_bytes, human_bytes(sizes.record_bytes)),
        fmt::format("a lane: {} of the longest records, to the next power of two = {}",
                    records_a_lane, human_bytes(sizes.lane_bytes)),
        fmt::format("lanes: {} producers x {} = {}", shape.producers, human_bytes(sizes.lane_bytes),
                    human_bytes(sizes.lanes_bytes)),
        fmt::format("open groups: {} producers x 1 group x {} records = {}", shape.producers,
                    shape.group_size, human_bytes(open)),
        fmt::format("batches: 2 (one in training, one ready) x {} groups x {} records = {}",
                    shape.batch_groups, shape.group_size, human_bytes(ready)),
        fmt::format("the spill: 4/3 of open groups and batches (a quarter stays free) = {}{}",
                    human_bytes(wanted),
                    wanted > lane_bytes_max
                        ? fmt::format("; one ring can have {}, so use several rings",
                                      human_bytes(lane_bytes_max))
                        : std::string()),
        fmt::format("control pages, the board of groups, released-bits = {}",
                    human_bytes(sizes.fixed_bytes)),
    };
    return sizes;
}

}  // namespace rollring
