// Room in the lane: waiting for it, and pacing a producer that is far ahead of a reading consumer.

#include <fmt/core.h>

#include <algorithm>

#include "fault_point.hpp"
#include "human.hpp"
#include "producer_impl.hpp"
#include "size_hint.hpp"

namespace rollring {
namespace {

constexpr std::uint64_t quarantine_look_records = 64;
constexpr std::uint64_t room_wanted_max = std::uint64_t{256} << 10;

}  // namespace

Push Producer::Impl::too_large(std::uint64_t bytes, std::uint64_t tokens, std::uint64_t members) {
    const Geometry& geometry = map.geometry();
    std::string why = fmt::format(
        "a record of {} cannot fit into a lane of {}: create the ring with --lane-bytes {} or more",
        human_bytes(bytes), human_bytes(geometry.lane_bytes), detail::option_bytes(bytes));
    if (tokens != 0) {
        why += fmt::format("; {} prints the sizes for a run of such records",
                           detail::size_hint({geometry.lane_count, members, tokens, bytes}));
    }
    return refuse(Push::too_large, std::move(why));
}

Push Producer::Impl::room(std::uint64_t bytes, Deadline deadline) {
    if (pacer.due(writer->position())) pace(bytes, deadline);
    // The word is in a cache line that the consumer writes, so reading it costs a miss: only every
    // few records.
    if (stats.records % quarantine_look_records == 0 && check_quarantine() != Push::ok) {
        return Push::closed;
    }
    switch (writer->reserve(bytes)) {
        case Reserve::ok:
            return Push::ok;
        case Reserve::too_large:
            return too_large(bytes, 0, 0);
        case Reserve::corrupt:
            return refuse(Push::closed, "the consumer's position in this lane is impossible");
        case Reserve::full:
            return wait_for_room(bytes, deadline);
    }
    return Push::closed;
}

Push Producer::Impl::wait_for_room(std::uint64_t bytes, Deadline deadline) {
    wish(bytes, 0);
    show();
    ring_bell(map.consumer_bell());  // reserve() has shown pending records and skips
    stats.waits++;
    poke(owner().waits, peek(owner().waits) + 1);
    Bell& bell = map.lane_bell(lane);
    NativeBell core = bell_of(bell);
    while (!deadline.passed()) {
        if (check_ring() != Push::ok) return Push::closed;
        Reserve found = spin_for_room(bytes);
        if (found == Reserve::full) {
            ring_bell(map.consumer_bell());  // reserve() may have shown a skip
            const std::uint32_t seen = core.prepare();
            found = writer->reserve(bytes);
            FAULT_POINT("room.before_sleep");
            if (found == Reserve::full) futex_sleep(bell.sequence, seen, deadline);
            core.cancel();
        }
        if (found == Reserve::ok) return Push::ok;
        if (found == Reserve::corrupt) {
            return refuse(Push::closed, "the consumer's position in this lane is impossible");
        }
    }
    // After a stop (SIGSTOP) the deadline may have passed although there is room.
    if (writer->reserve(bytes) == Reserve::ok) return Push::ok;
    return refuse(Push::timed_out,
                  fmt::format("no room for {} in lane {} of {} ({} of {} unreleased): {}",
                              human_bytes(bytes), lane, map.segment().ring(),
                              human_bytes(writer->shown() - observe(map.entry(lane).head)),
                              human_bytes(map.geometry().lane_bytes),
                              map.consumer_alive() ? "the consumer is alive and holds them"
                                                   : "no consumer is attached"));
}

// Spins until a part of the lane is free, not just the room for one record. A producer that takes
// the room of each record as soon as it is free reads the head as often as the consumer writes it.
// Both then wait for that cache line with every record, and run at half speed as long as the lane
// stays full.
Reserve Producer::Impl::spin_for_room(std::uint64_t bytes) {
    const std::int64_t until = monotonic_ns() + options.spin.count();
    const ReaderEntry& reader = map.entry(lane);
    const std::uint64_t wanted = std::min(map.geometry().lane_bytes / 8, room_wanted_max);
    const std::uint64_t from = peek(reader.head);
    while (peek(reader.head) - from < wanted && monotonic_ns() < until) spin_about_a_microsecond();
    return writer->reserve(bytes);
}

void Producer::Impl::pace(std::uint64_t record_bytes, Deadline deadline) {
    writer->set_soft(pacer.near_bytes(record_bytes));
    if (!pacer.behind(*writer, deadline)) return;
    show();
    stats.paces++;
    pacer.wait(*writer, deadline);
}

}  // namespace rollring
