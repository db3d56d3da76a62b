#include "integrations/atropos/lane_pool.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "cli/terminal/interrupts.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr std::int64_t slice_ms = 20;  // between checks for room, and of the sender
constexpr std::int64_t again_ns = 1'000'000'000;
constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t frame_bytes = 256;  // of a record beside its columns, at most

// A lane of records that are released out of order has gaps: it counts as full a little earlier.
std::uint64_t usable(std::uint64_t lane_bytes) {
    return lane_bytes - lane_bytes / 8;
}

}  // namespace

Result<std::unique_ptr<LanePool>> LanePool::open(const std::string& ring) {
    const auto stat = stat_ring(ring);
    if (!stat) return std::unexpected(stat.error());
    std::unique_ptr<LanePool> pool(new LanePool(ring));
    // The other lanes are for producers without this server.
    pool->lanes_max_ = std::max(1U, stat->lane_count / 2);
    pool->lane_bytes_ = stat->lane_bytes;
    if (auto added = pool->add(); !added) return std::unexpected(added.error());
    pool->first_ = pool->lanes_.front().get();
    return pool;
}

Result<void> LanePool::add() {
    constexpr std::int64_t first_ms = 10'000;
    const bool first = lanes_.empty();
    auto opened =
        Producer::open(ring_, {.name = fmt::format("{}{}", producer_name, lanes_.size()),
                               .attach_timeout = std::chrono::milliseconds(first ? first_ms : 0)});
    if (!opened) return std::unexpected(opened.error());
    lanes_.push_back(std::make_unique<Lane>(std::move(*opened)));
    return {};
}

void LanePool::look() {
    const auto stat = stat_ring(ring_);
    if (!stat) return;
    for (const auto& lane : lanes_) {
        for (const LaneStat& one : stat->lanes) {
            if (one.lane != lane->producer.lane()) continue;
            lane->depth = one.depth_bytes;
            lane->sent = 0;
        }
    }
}

// Null if no lane has the room.
LanePool::Lane* LanePool::choose(std::uint64_t bytes) {
    const auto has_room = [this, bytes](const std::unique_ptr<Lane>& lane) {
        return lane->filled() == 0 || lane->filled() + bytes <= usable(lane_bytes_);
    };
    auto found = std::ranges::find_if(lanes_, has_room);
    if (found == lanes_.end()) {
        look();
        found = std::ranges::find_if(lanes_, has_room);
    }
    const bool may_add = lanes_.size() < lanes_max_ && monotonic_ns() - refused_ns_ > again_ns;
    if (found == lanes_.end() && may_add) {
        if (add()) {
            found = lanes_.end() - 1;
        } else {
            refused_ns_ = monotonic_ns();
        }
    }
    if (found == lanes_.end()) return nullptr;
    (*found)->reserved += bytes;
    return found->get();
}

LaneSend LanePool::push(Lane& lane, std::span<const Draft> group, Deadline deadline,
                        const std::function<bool()>& gone, std::string& problem) {
    const std::scoped_lock lock(lane.mutex);
    for (std::size_t i = 0; i < group.size(); i++) {
        // The first record waits for a credit of the stash, too. Once begun, a group is sent to its
        // end, even if the client hangs up: the stash waits for the rest.
        Push pushed = Push::timed_out;
        while (pushed == Push::timed_out) {
            pushed = lane.producer.push_later(group[i], Deadline::after_ms(slice_ms));
            if (pushed != Push::timed_out) break;
            if (interrupted() || (i == 0 && gone())) return LaneSend::given_up;
            if (i == 0 && deadline.passed()) return LaneSend::no_room;
        }
        if (pushed == Push::ok) continue;
        problem = lane.producer.problem();
        if (pushed == Push::too_large) return LaneSend::too_large;
        return pushed == Push::bad_record ? LaneSend::bad_record : LaneSend::closed;
    }
    lane.producer.flush();
    return LaneSend::ok;
}

LaneSend LanePool::send(std::span<const Draft> group, std::int64_t wait_ms,
                        const std::function<bool()>& gone, std::string& problem) {
    std::uint64_t bytes = 0;
    for (const Draft& draft : group) {
        const Encoder encoder(draft, schema(), Checksum::none);
        problem = encoder.problem();
        if (!problem.empty()) return LaneSend::bad_record;
        bytes += encoder.bytes() + frame_bytes;
    }
    if (bytes > usable(lane_bytes_)) {
        problem = fmt::format(
            "the group takes {} bytes, but a lane of this ring has {}, of which seven eighths are "
            "used: create the ring with --lane-bytes {}MiB or more",
            bytes, lane_bytes_, bytes / 7 * 8 / mib + 1);
        return LaneSend::too_large;
    }
    const Deadline deadline = Deadline::after_ms(wait_ms);
    Lane* lane = nullptr;
    while (lane == nullptr) {
        {
            const std::scoped_lock lock(mutex_);
            lane = choose(bytes);
        }
        if (lane != nullptr) break;
        if (gone()) return LaneSend::given_up;
        if (deadline.passed()) return LaneSend::no_room;
        pause_ms(slice_ms);
    }
    const LaneSend sent = push(*lane, group, deadline, gone, problem);
    const std::scoped_lock lock(mutex_);
    lane->reserved -= bytes;
    if (sent == LaneSend::ok) lane->sent += bytes;
    return sent;
}

}  // namespace rollring::cli
