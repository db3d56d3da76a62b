// The choice of a new producer's lane, and the reason if there is none.

#include <fmt/core.h>

#include <chrono>
#include <thread>
#include <utility>

#include "fault_point.hpp"
#include "producer_impl.hpp"

namespace rollring {
namespace {

// The check word of a kept lane: a value that no process writes there by accident.
std::uint64_t keep_check(std::uint64_t ring, std::uint32_t lane, std::uint64_t kept_for) {
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
    return (kept_for ^ ring) * odd + lane;
}

std::uint64_t keeper_of(const std::string& words) {
    return words.empty() ? 0 : GroupKey::of(words, 0).low | 1;
}

// The hash by which the words of the lane keep it; 0: they keep it for no producer.
std::uint64_t kept_words(const LaneOwner& owner, std::uint64_t ring, std::uint32_t lane) {
    const std::uint64_t found = peek(owner.kept_for);
    return found != 0 && peek(owner.kept_check) == keep_check(ring, lane, found) ? found : 0;
}

// The hash that a producer needs to take the lane; 0: any producer may. A producer that has closed
// keeps no lane; if it died right after that, its words may still be there.
std::uint64_t keeper(const RingMap& map, std::uint32_t lane) {
    const LaneOwner& owner = map.owner(lane);
    if (observe(owner.state) == static_cast<std::uint32_t>(OwnerState::closed)) return 0;
    return kept_words(owner, map.ring_id(), lane);
}

bool is_kept(const RingMap& map, std::uint64_t wanted) {
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        if (keeper(map, lane) == wanted) return true;
    }
    return false;
}

Error no_lane(const RingMap& map) {
    std::uint32_t living = 0;
    std::uint32_t gone = 0;
    std::uint32_t kept = 0;
    std::string who;
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        if (!map.producer_alive(lane)) {
            (keeper(map, lane) != 0 ? kept : gone)++;
        } else if (living++ == 0) {
            const LaneOwner& owner = map.owner(lane);
            who = fmt::format(" (the first is {}, pid {})", load_name(owner), peek(owner.pid));
        }
    }
    std::string why =
        fmt::format("no lane of {} is free: of {} lanes, {} belong to live producers{}",
                    map.segment().ring(), map.geometry().lane_count, living, who);
    if (gone != 0) {
        why += fmt::format(
            ", {} to ended producers whose lanes {} must retire", gone,
            map.consumer_alive() ? "the consumer" : "a consumer (none is attached: start one)");
    }
    if (kept != 0) why += fmt::format(", {} are reserved for producers that will return", kept);
    return {Errc::no_free_lane, 0, why + "; create the ring with more --lanes for more producers"};
}

struct Taken {
    std::uint32_t lane;
    LifeLock life;
};

// Takes the first free lane that is kept by the hash `wanted` (0: not kept) and whose last producer
// has been drained. `empty`: only a lane without records of predecessors, because it has more room.
Result<std::optional<Taken>> take_lane(const RingMap& map, std::uint64_t wanted, bool empty) {
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        if (keeper(map, lane) != wanted) continue;
        if (!map.lane_is_idle(lane) || !map.lane_is_sound(lane)) continue;
        const ReaderEntry& entry = map.entry(lane);
        if (empty && observe(entry.cursor) != observe(entry.restart_at)) continue;
        auto lock = LifeLock::take(map.segment().fd(), LifeByte::lane(lane));
        if (!lock) return std::unexpected(lock.error());
        // Check again under the lock: another producer may have taken and closed the lane
        // meanwhile.
        if (lock->has_value() && map.lane_is_idle(lane) && keeper(map, lane) == wanted) {
            return Taken{lane, std::move(**lock)};
        }
    }
    return std::optional<Taken>{};
}

}  // namespace

// Words of a predecessor that already keep the lane by this hash stay as they are: a death between
// two stores must not give the lane to another producer. A producer that keeps it anew has sent
// nothing yet.
void Producer::Impl::keep_lane(std::uint64_t kept_for) {
    LaneOwner& own = owner();
    if (kept_words(own, map.ring_id(), lane) == kept_for) return;
    poke(own.kept_check, std::uint64_t{0});
    poke(own.kept_for, kept_for);
    if (kept_for != 0) store_release(own.kept_check, keep_check(map.ring_id(), lane, kept_for));
}

Result<Producer> Producer::open(std::string_view ring, const ProducerOptions& options) {
    const Deadline deadline = Deadline::after(options.attach_timeout);
    auto map = RingMap::attach_for(options.purpose, ring, deadline);
    if (!map) return std::unexpected(map.error());
    for (;;) {
        if (!map->segment().linked()) {  // removed during the wait: there may be a new one
            map = RingMap::attach_for(options.purpose, ring, deadline);
            if (!map) return std::unexpected(map.error());
        }
        const std::uint64_t ours = keeper_of(options.keep_for);
        const std::uint64_t wanted = ours != 0 && is_kept(*map, ours) ? ours : 0;
        auto taken = take_lane(*map, wanted, true);
        if (taken && !taken->has_value()) taken = take_lane(*map, wanted, false);
        if (!taken) return std::unexpected(taken.error());
        if (!taken->has_value()) {
            if (deadline.passed()) {
                return std::unexpected(no_lane(*map));
            }
            // The lane of a dead producer is free once the consumer has noticed the death.
            map->consumer_bell().lane_changes.fetch_add(1);
            ring_bell(map->consumer_bell());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            continue;
        }
        FAULT_POINT("open.after_lock");
        auto stays = map->segment().stays(deadline);
        if (!stays) return std::unexpected(stays.error());
        if (!*stays) continue;
        const std::uint32_t lane = (*taken)->lane;
        const Geometry& geometry = map->geometry();
        auto reserved = map->segment().reserve(geometry.bits_offset(lane), geometry.stride(lane));
        if (!reserved) return std::unexpected(reserved.error());
        auto page = map->segment().map(geometry.owner_offset(lane), page_bytes, true);
        if (!page) return std::unexpected(page.error());
        auto data = map->segment().map(geometry.data_offset(lane), geometry.lane_bytes, true);
        if (!data) return std::unexpected(data.error());
        data->populate(0, map->near_bytes(), true);
        auto impl =
            std::make_unique<Impl>(std::move(*map), options, lane, std::move((*taken)->life),
                                   std::move(*page), std::move(*data));
        impl->keep_lane(ours);
        FAULT_POINT("open.after_keep");
        FAULT_POINT("open.after_reserve");
        impl->start();
        return Producer(std::move(impl));
    }
}

}  // namespace rollring
