// Room in the lane: waiting for it, and not running too far ahead of a consumer that keeps reading.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "human.hpp"
#include "producer_impl.hpp"

namespace rollring {
namespace {

constexpr std::uint64_t quarantine_look_records = 64;
constexpr std::uint64_t room_wanted_max = std::uint64_t{256} << 10;
constexpr std::uint64_t pace_bytes_min = std::uint64_t{512} << 10;  // less is in cache anyhow
constexpr std::int64_t pace_ns_max = 200'000;                       // at one time
constexpr std::int64_t pace_idle_ns = 60'000;  // if the consumer reads nothing: it may train
constexpr int pace_look_us = 4;                // it writes what we look at with every record

void spin_about_a_microsecond() {
    for (int i = 0; i < 64; i++) spin_pause();
}

}  // namespace

Push Producer::Impl::too_large(std::uint64_t bytes) {
    return refuse(
        Push::too_large,
        fmt::format("a record of {} can never fit into a lane of {}: create the ring with "
                    "a larger --lane-bytes",
                    human_bytes(bytes), human_bytes(map.geometry().lane_bytes)));
}

Push Producer::Impl::room(std::uint64_t bytes, Deadline deadline) {
    if (writer->position() >= pace_at) pace(deadline);
    // The word lies in the consumer's line, which costs a miss: not with every record.
    if (stats.records % quarantine_look_records == 0 && check_quarantine() != Push::ok) {
        return Push::closed;
    }
    switch (writer->reserve(bytes)) {
        case Reserve::ok:
            return Push::ok;
        case Reserve::too_large:
            return too_large(bytes);
        case Reserve::corrupt:
            return refuse(Push::closed, "the consumer's position in this lane is impossible");
        case Reserve::full:
            return wait_for_room(bytes, deadline);
    }
    return Push::closed;
}

Push Producer::Impl::wait_for_room(std::uint64_t bytes, Deadline deadline) {
    wish(bytes, 0);
    publish();
    ring_bell(map.consumer_bell());  // reserve() has published what was pending, skips too
    stats.waits++;
    poke(owner().waits, peek(owner().waits) + 1);
    Bell& bell = map.lane_bell(lane);
    NativeBell core = bell_of(bell);
    while (!deadline.passed()) {
        if (check_ring() != Push::ok) return Push::closed;
        Reserve found = spin_for_room(bytes);
        if (found == Reserve::full) {
            ring_bell(map.consumer_bell());  // it may have published a skip
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
    // A process that was stopped meanwhile finds its deadline passed, and room all the same.
    if (writer->reserve(bytes) == Reserve::ok) return Push::ok;
    return refuse(Push::timed_out,
                  fmt::format("no room for {} in lane {} of {} ({} unreleased of {}): {}",
                              human_bytes(bytes), lane, map.segment().name(),
                              human_bytes(writer->published() - observe(map.entry(lane).head)),
                              human_bytes(map.geometry().lane_bytes),
                              map.consumer_alive() ? "the consumer is alive and holds them"
                                                   : "no consumer is attached"));
}

// Until a part of the lane has come free, not just enough for one record: a producer that takes
// each record's room as it comes reads the head as often as the consumer writes it, and both wait
// for that cache line with every record, at half the speed, for as long as the lane stays full.
Reserve Producer::Impl::spin_for_room(std::uint64_t bytes) {
    const std::int64_t until = monotonic_ns() + options.spin_us * 1000;
    const ReaderEntry& reader = map.entry(lane);
    const std::uint64_t wanted = std::min(map.geometry().lane_bytes / 8, room_wanted_max);
    const std::uint64_t from = peek(reader.head);
    while (peek(reader.head) - from < wanted && monotonic_ns() < until) spin_about_a_microsecond();
    return writer->reserve(bytes);
}

// Where the consumer is far behind in reading, both sides work on memory that has left their
// caches, the consumer is slower than it could be, and so it stays behind: a lane that was full
// once stays full, at half the rate. So a consumer that keeps reading is given the time to catch
// up, to what the soft wrap keeps in cache. What it has read and holds does not count: a batch that
// it waits for is not completed by waiting. Where it does not read (it trains) all of the lane is
// there for the backlog, and it is asked less and less often.
void Producer::Impl::pace(Deadline deadline) {
    const Geometry& geometry = map.geometry();
    const std::uint64_t most = std::max(geometry.soft_bytes, pace_bytes_min);
    const std::uint64_t step = most / 8;
    const auto ask_again = [&](std::uint64_t bytes) {
        pace_step = std::min(bytes, geometry.lane_bytes);
        pace_at = writer->position() + pace_step;
    };
    const ReaderEntry& reader = map.entry(lane);
    // Below restart_at lies nothing of ours, nor anything that is read any more.
    const std::uint64_t from = std::max(peek(reader.delivered), peek(reader.restart_at));
    if (writer->written_since(from) <= most || options.spin_us == 0) {
        return ask_again(std::max(step, pace_step / 2));
    }
    const std::uint64_t later = std::max(step, 2 * pace_step);
    if (deadline.passed()) return ask_again(later);
    publish();
    stats.paces++;
    const std::int64_t began = monotonic_ns();
    const std::int64_t until = std::min(began + pace_ns_max, deadline.at_ns);
    std::uint64_t read = from;
    std::int64_t read_ns = began;
    for (std::int64_t now = began; now < until; now = monotonic_ns()) {
        for (int i = 0; i < pace_look_us; i++) spin_about_a_microsecond();
        const std::uint64_t before = std::exchange(read, peek(reader.delivered));
        if (read >= from + step) return ask_again(step);
        if (read != before) read_ns = now;
        if (now - read_ns > pace_idle_ns) break;
    }
    ask_again(later);
}

}  // namespace rollring
