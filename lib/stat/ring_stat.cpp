// A ring as seen from outside.

#include <algorithm>

#include "checked_frame.hpp"
#include "companion.hpp"
#include "frames_by_read.hpp"
#include "ledger_place.hpp"
#include "overflow_file.hpp"
#include "ring_map.hpp"
#include "rollring/ring.hpp"

namespace rollring {
namespace {

std::int64_t oldest_age_ns(const RingMap& map, std::uint32_t lane, std::uint64_t head,
                           std::uint64_t tail) {
    const FramesByRead frames{map.segment(), map.geometry().data_offset(lane)};
    const LaneSize size(map.geometry().lane_bytes);
    Frame frame;
    if (head % line_bytes != 0 || head >= tail) return -1;
    if (!checked_frame(frames, size, head, tail, frame) || !is_record(frame)) return -1;
    return age_ns(monotonic_ns(), frame.committed_ns);
}

// Positions also count the skips between records: at the end of a lap, over memory that holds
// nothing, and in a jump, over records that are counted already. The skips are searched if the lap
// before has few records left, as behind a soft lap; otherwise the lane's length is the bound.
std::uint64_t unreleased_bytes(const RingMap& map, std::uint32_t lane, std::uint64_t head,
                               std::uint64_t tail) {
    constexpr int looks_most = 256;
    const LaneSize size(map.geometry().lane_bytes);
    const FramesByRead frames{map.segment(), map.geometry().data_offset(lane)};
    std::uint64_t bytes = tail - head;
    const bool skips = bytes > size.offset(tail) || peek(map.owner(lane).jumps) != 0;
    if (!skips || head % line_bytes != 0) return std::min(bytes, size.bytes());
    std::uint64_t at = head;
    for (int looks = 0; looks < looks_most && at < tail; looks++) {
        Frame frame;
        if (!checked_frame(frames, size, at, tail, frame)) break;
        if (is_skip(frame)) bytes -= frame.bytes;
        at += frame.bytes;
    }
    return std::min(bytes, size.bytes());
}

LaneState state_of(const RingMap& map, std::uint32_t lane, bool alive, bool retired) {
    if (observe(map.entry(lane).quarantine) != 0) return LaneState::quarantined;
    if (retired) return LaneState::free;
    if (observe(map.owner(lane).state) == static_cast<std::uint32_t>(OwnerState::closed)) {
        return LaneState::closed;
    }
    return alive ? LaneState::active : LaneState::dead;
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
    stat.died = stat.epoch != 0 && !stat.alive &&
                observe(owner.state) != static_cast<std::uint32_t>(OwnerState::closed);
    stat.state = state_of(map, lane, stat.alive, stat.retired);
    // Two totals of two writers, from different moments; an empty lane has no depth in any case.
    stat.depth_records = tail > head && committed > delivered ? committed - delivered : 0;
    stat.depth_bytes = unreleased_bytes(map, lane, head, tail);
    const std::int64_t shown_ns = peek(owner.shown_ns);
    stat.newest_age_ns = shown_ns > 0 ? age_ns(monotonic_ns(), shown_ns) : -1;
    stat.oldest_age_ns = oldest_age_ns(map, lane, head, tail);
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
    if (observe(entry.durable_epoch) == stat.epoch) {
        stat.durable_records = observe(entry.durable_records);
    }
    stat.producers_died = peek(entry.producers_died);
    stat.producers_closed = peek(entry.producers_closed);
    return stat;
}

}  // namespace

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
    stat.ledger_dir = map->segment().ledger().directory;
    stat.ledger_bytes = map->segment().ledger().bytes;
    const LedgerFiles files = look_at_ledger(stat.ledger_dir);
    stat.ledger_files_bytes = files.bytes;
    stat.ledger_failed = files.failed;
    stat.durable = map->segment().ledger().durable;
    stat.object_bytes = header.segment_bytes;
    stat.resident_bytes = map->segment().resident_bytes() + detail::companion_bytes(map->segment());
    stat.consumer_alive = map->consumer_alive();
    stat.consumer_pid = peek(map->control().pid);
    stat.consumer_epoch = peek(map->control().epoch);
    stat.last_acked_step = peek(map->control().last_acked_step);
    stat.policy_version = peek(map->policy().version);
    stat.schema = map->schema();
    for (std::uint32_t lane = 0; lane < header.lane_count; lane++) {
        if (observe(map->owner(lane).epoch) != 0) stat.lanes.push_back(stat_lane(*map, lane));
    }
    return stat;
}

std::string_view name(LaneState state) {
    switch (state) {
        case LaneState::free:
            return "free";
        case LaneState::active:
            return "active";
        case LaneState::closed:
            return "closed";
        case LaneState::dead:
            return "dead";
        case LaneState::quarantined:
            return "quarantined";
    }
    return "unknown";
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
    found.in_use = in_use.value_or(true);  // an object that cannot be queried is not proven dead
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
    found.orphaned = map->segment().orphaned();
    for (std::uint32_t lane = 0; lane <= map->geometry().spill_lane(); lane++) {
        found.has_records |= observe(map->owner(lane).tail) > observe(map->entry(lane).cursor);
    }
    return found;
}

}  // namespace rollring
