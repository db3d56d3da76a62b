#include "rollring/ring.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "channel_names.hpp"
#include "human.hpp"
#include "liveness.hpp"
#include "overflow_file.hpp"
#include "ring_map.hpp"
#include "schema_page.hpp"

namespace rollring {
namespace {

constexpr std::int64_t create_timeout_ms = 5'000;
// Of the spill, unless it is given: as much as all lanes, so that whatever lies in them can be
// moved; reserved as it is needed.
constexpr std::uint64_t spill_bytes_least = std::uint64_t{256} << 20;
constexpr std::uint64_t spill_bytes_most = std::uint64_t{64} << 30;
// Of the overflow file, likewise.
constexpr std::uint64_t overflow_spills = 4;
constexpr std::uint64_t overflow_bytes_most = std::uint64_t{64} << 30;

std::uint64_t default_soft_bytes() {
    constexpr std::uint64_t most = std::uint64_t{4} << 20;
    const long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache_bytes <= 0) return most;
    const std::uint64_t quarter = static_cast<std::uint64_t>(cache_bytes) / 4;
    return std::min(most, std::max(round_up(quarter, page_bytes), page_bytes));
}

// What is said of the overflow file, once the spill is known; empty if nothing is wrong with it.
std::string add_overflow(const RingOptions& options, Geometry& geometry) {
    const bool wanted = !options.overflow_dir.empty();
    if (!wanted && options.overflow_bytes) {
        return "overflow_bytes is given, but no overflow_dir to have them in";
    }
    if (!wanted) return {};
    if (geometry.spill_bytes == 0) {
        return "overflow_dir is given, but the spill that would go on there has none: spill_bytes "
               "is 0";
    }
    const std::uint64_t most = lane_bytes_max - geometry.spill_bytes;
    const std::uint64_t bytes = options.overflow_bytes.value_or(
        std::min({overflow_spills * geometry.spill_bytes, overflow_bytes_most, most}));
    if (bytes == 0 || bytes > most) {
        return fmt::format(
            "overflow_bytes is {}, must be at least 1 and at most {}: with the "
            "spill's {} no more than {}",
            human_bytes(bytes), human_bytes(most), human_bytes(geometry.spill_bytes),
            human_bytes(lane_bytes_max));
    }
    geometry.overflow_bytes = round_up(bytes, page_bytes);
    return {};
}

Result<Geometry> geometry_of(const RingOptions& options) {
    const auto refuse = [](std::string why) {
        return std::unexpected(Error{Errc::invalid_argument, 0, std::move(why)});
    };
    if (options.lanes < 1 || options.lanes > lanes_max) {
        return refuse(fmt::format("lanes is {}, must be 1 to {}", options.lanes, lanes_max));
    }
    if (options.lane_bytes < 1 || options.lane_bytes > lane_bytes_max) {
        return refuse(fmt::format("lane_bytes is {}, must be {} to {}",
                                  human_bytes(options.lane_bytes), human_bytes(1),
                                  human_bytes(lane_bytes_max)));
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
    Geometry geometry{};
    geometry.lane_count = options.lanes;
    geometry.journal_records = options.journal_records;
    geometry.lane_bytes = round_up(options.lane_bytes, page_bytes);
    geometry.soft_bytes = options.soft_bytes == 0 ? default_soft_bytes() : options.soft_bytes;
    geometry.spill_bytes =
        round_up(options.spill_bytes.value_or(std::clamp(geometry.lane_count * geometry.lane_bytes,
                                                         spill_bytes_least, spill_bytes_most)),
                 page_bytes);
    geometry.group_rows = options.group_rows;
    geometry.soft_bytes = std::min(round_up(geometry.soft_bytes, line_bytes), geometry.lane_bytes);
    if (auto wrong = add_overflow(options, geometry); !wrong.empty()) {
        return refuse(std::move(wrong));
    }
    return geometry;
}

// Frames between the lane's head and its tail are read with pread: a mapping would allocate pages.
std::int64_t oldest_age_ns(const RingMap& map, std::uint32_t lane, std::uint64_t head) {
    Frame frame{};
    const std::uint64_t offset =
        map.geometry().data_offset(lane) + head % map.geometry().lane_bytes;
    if (!map.segment().read(offset, &frame, sizeof frame)) return -1;
    const bool whole = frame.magic == frame_magic && frame.position == head;
    if (!whole || frame.kind != static_cast<std::uint16_t>(FrameKind::record)) return -1;
    return age_ns(monotonic_ns(), frame.committed_ns);
}

std::string_view state_of(const RingMap& map, std::uint32_t lane, bool alive, bool retired) {
    if (observe(map.entry(lane).quarantine) != 0) return "quarantined";
    if (retired) return "free";
    if (observe(map.owner(lane).state) == static_cast<std::uint32_t>(OwnerState::closed)) {
        return "closed";
    }
    return alive ? "active" : "dead";
}

LaneStat stat_lane(const RingMap& map, std::uint32_t lane) {
    const LaneOwner& owner = map.owner(lane);
    const ReaderEntry& entry = map.entry(lane);
    const std::uint64_t head = observe(entry.cursor);
    const std::uint64_t tail = std::max(observe(owner.tail), head);
    const std::uint64_t delivered = peek(entry.records);
    const std::uint64_t committed = peek(owner.records_total);
    LaneStat stat{};
    stat.lane = lane;
    stat.epoch = observe(owner.epoch);
    stat.producer = load_name(owner);
    stat.pid = peek(owner.pid);
    stat.alive = map.producer_alive(lane);
    stat.retired = map.lane_is_idle(lane);
    stat.state = state_of(map, lane, stat.alive, stat.retired);
    // Two totals of two writers, a moment apart; an empty lane has none, whatever they say.
    stat.depth_records = tail > head && committed > delivered ? committed - delivered : 0;
    stat.depth_bytes = tail - head;
    stat.oldest_age_ns = tail > head ? oldest_age_ns(map, lane, head) : -1;
    stat.committed_records = committed;
    stat.committed_tokens = peek(owner.tokens);
    stat.committed_bytes = peek(owner.bytes);
    stat.delivered_records = delivered;
    stat.released_records = peek(entry.released);
    stat.waits = peek(owner.waits);
    stat.laps_soft = peek(owner.laps_soft);
    stat.laps_full = peek(owner.laps_full);
    stat.jumps = peek(owner.jumps);
    stat.lost = peek(entry.lost);
    stat.duplicates = peek(entry.duplicates);
    stat.torn = peek(entry.torn);
    stat.redelivered = peek(entry.redelivered);
    stat.dropped_bytes = peek(entry.dropped_bytes);
    stat.producers_lost = peek(entry.producers_lost);
    stat.producers_closed = peek(entry.producers_closed);
    return stat;
}

}  // namespace

Result<void> create_ring(std::string_view name, const RingOptions& options) {
    auto geometry = geometry_of(options);
    if (!geometry) return std::unexpected(geometry.error());
    auto segment = Segment::create(name, *geometry, to_page(options.schema),
                                   Deadline::after_ms(create_timeout_ms), options.overflow_dir);
    if (!segment) return std::unexpected(segment.error());
    return {};
}

Result<void> remove_ring(std::string_view name, bool force) {
    auto removed = Segment::remove(name, force);
    if (removed) channel::sweep(name, true);
    return removed;
}

std::vector<std::string> list_rings() {
    return Segment::list();
}

Result<RingStat> stat_ring(std::string_view name) {
    auto map = RingMap::attach(name, Deadline::now(), Access::read_only);
    if (!map) return std::unexpected(map.error());
    const SegmentHeader& header = map->segment().header();
    RingStat stat{};
    stat.name = name;
    stat.ring_id = header.ring_id;
    stat.created_ns = header.created_ns;
    stat.lane_count = header.lane_count;
    stat.lane_bytes = header.lane_bytes;
    stat.soft_bytes = header.soft_bytes;
    stat.spill_bytes = header.spill_bytes;
    stat.overflow_bytes = header.overflow_bytes;
    stat.overflow_path = map->segment().overflow_path();
    stat.overflow_resident_bytes =
        header.overflow_bytes == 0 ? 0 : OverflowFile::resident_bytes(stat.overflow_path);
    stat.object_bytes = header.segment_bytes;
    stat.resident_bytes = map->segment().resident_bytes();
    stat.consumer_alive = map->consumer_alive();
    stat.consumer_pid = peek(map->control().pid);
    stat.consumer_epoch = peek(map->control().epoch);
    stat.last_acked_step = peek(map->control().last_acked_step);
    stat.policy_version = peek(map->policy().version);
    for (std::uint32_t lane = 0; lane < header.lane_count; lane++) {
        if (observe(map->owner(lane).epoch) != 0) stat.lanes.push_back(stat_lane(*map, lane));
    }
    return stat;
}

std::string_view name(RingHealth health) {
    switch (health) {
        case RingHealth::ok:
            return "ok";
        case RingHealth::unfinished:
            return "unfinished";
        case RingHealth::damaged:
            return "damaged";
        case RingHealth::incompatible:
            return "incompatible";
        case RingHealth::foreign:
            return "foreign";
        case RingHealth::unknown:
            return "unknown";
    }
    return "unknown";
}

RingDiagnosis diagnose_ring(std::string_view name) {
    RingDiagnosis found{std::string(name), RingHealth::ok, false, false, false, {}};
    auto in_use = Segment::in_use(name);
    found.in_use = in_use.value_or(true);  // what cannot be asked is not proven dead
    auto map = RingMap::attach(name, Deadline::now(), Access::read_only);
    if (!map) {
        found.detail = map.error().message;
        switch (map.error().code) {
            case Errc::not_ready:
                found.health = RingHealth::unfinished;
                break;
            case Errc::abi_mismatch:
                found.health = RingHealth::incompatible;
                break;
            case Errc::permission_denied:
                found.health = RingHealth::foreign;
                break;
            case Errc::not_a_ring:
                found.health = RingHealth::damaged;
                break;
            default:
                found.health = RingHealth::unknown;
                break;
        }
        return found;
    }
    found.used = peek(map->control().epoch) != 0;
    for (std::uint32_t lane = 0; lane <= map->geometry().spill_lane(); lane++) {
        found.has_records |= observe(map->owner(lane).tail) > observe(map->entry(lane).cursor);
        found.used |= observe(map->owner(lane).epoch) != 0;
    }
    return found;
}

SharedMemorySpace shared_memory_space() {
    const auto space = Segment::shared_memory();
    return {space.free_bytes, space.total_bytes};
}

}  // namespace rollring
