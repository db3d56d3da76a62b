// The consumer's look at its producers: who came, who is gone, what a predecessor left.

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "consumer_impl.hpp"
#include "fault_point.hpp"

namespace rollring {
namespace {

constexpr std::int64_t look_everywhere_ns = 1'000'000'000;
constexpr std::size_t events_max = 1024;
constexpr std::uint64_t touch_bytes = 64 << 10;  // takes a few us

// To look at a producer is a system call, and a record that arrives meanwhile waits for it. So
// while nothing arrives each lane has its turn: every millisecond, as long as ten looks in one are
// enough; with more lanes less often, and at more than one at a time only if they are many.
constexpr std::int64_t look_idle_ns = 1'000'000;
constexpr std::size_t looks_max = 10;
constexpr std::size_t look_rounds = 64;

std::int64_t look_gap(std::size_t lanes) {
    return look_idle_ns / static_cast<std::int64_t>(std::clamp<std::size_t>(lanes, 1, looks_max));
}
std::size_t look_lanes(std::size_t lanes) {
    return 1 + lanes / look_rounds;
}

}  // namespace

std::string_view name(Event::Kind kind) {
    switch (kind) {
        case Event::Kind::producer_joined:
            return "producer_joined";
        case Event::Kind::producer_closed:
            return "producer_closed";
        case Event::Kind::producer_lost:
            return "producer_lost";
        case Event::Kind::quarantined:
            return "quarantined";
        case Event::Kind::torn:
            return "torn";
        case Event::Kind::lane_failed:
            return "lane_failed";
        case Event::Kind::stalled:
            return "stalled";
        case Event::Kind::overflow_failed:
            return "overflow_failed";
    }
    return "unknown";
}

Result<void> Consumer::Impl::start() {
    FAULT_POINT("seat.after_lock");
    ReaderControl& own = control();
    if (std::thread::hardware_concurrency() < 2) options.spin_us = 0;
    before = totals();
    poke(own.pid, static_cast<std::uint32_t>(getpid()));
    poke(own.attached_ns, monotonic_ns());
    barriers = can_make_barriers();
    poke(own.barriers, barriers ? 1U : 0U);
    publish(own.epoch, peek(own.epoch) + 1);
    if (auto recovered = recover(); !recovered) return recovered;
    last_step = peek(own.last_acked_step);  // with what the journal said
    return {};
}

// Takes over every lane that holds something or has a producer, then replays the journal.
Result<void> Consumer::Impl::recover() {
    if (auto moved = Spill::recover(map, control()); !moved) return moved;
    const std::uint32_t spill_lane = map.geometry().spill_lane();
    if (map.geometry().spill_bytes != 0 &&
        observe(map.owner(spill_lane).tail) != observe(map.entry(spill_lane).head)) {
        if (auto opened = open_lane(spill_lane, false); !opened) return opened;
    }
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        const ReaderEntry& entry = map.entry(lane);
        const bool holds = observe(entry.restart_at) != observe(entry.head);
        if (!holds && map.lane_is_idle(lane)) continue;
        if (auto opened = open_lane(lane, false); !opened) return opened;
    }
    FAULT_POINT("recover.before_journal");
    journal().recover([&](const JournalEntry& entry) {
        commit_graves();
        if (entry.lane >= feeds.size() || !feeds[entry.lane]) return;
        const Span span{entry.position, std::uint64_t{entry.lines} * line_bytes};
        if (!feeds[entry.lane]->covers(span)) return;
        FAULT_POINT("recover.while_marking");
        feeds[entry.lane]->mark(span);
    });
    publish(control().journal_graves, std::uint64_t{0});
    FAULT_POINT("recover.after_journal");
    return {};
}

Result<void> Consumer::Impl::open_lane(std::uint32_t lane, bool all_ours) {
    auto feed = LaneFeed::open(map, all, reader_pages, lane, all_ours);
    if (!feed) return std::unexpected(feed.error());
    feeds[lane].emplace(std::move(*feed));
    active.push_back(lane);
    ring_bell(map.lane_bell(lane));  // recovery may have moved its head
    if (feeds[lane]->active()) greet(lane);
    if (feeds[lane]->quarantined()) {
        quarantines++;
        tell(feeds[lane]->event(Event::Kind::quarantined));
    } else if (!feeds[lane]->problem().empty()) {
        tell(feeds[lane]->event(Event::Kind::torn));
    }
    return {};
}

void Consumer::Impl::greet(std::uint32_t lane) {
    const Span near{map.geometry().data_offset(lane), map.near_bytes()};
    std::erase_if(untouched, [&](const Span& left) {  // of the lane's last producer
        return left.position >= near.position && left.position < near.position + near.bytes;
    });
    untouched.push_back(near);
    tell(feeds[lane]->event(Event::Kind::producer_joined));
}

void Consumer::Impl::touch_some() {
    Span& next = untouched.back();
    const std::uint64_t bytes = std::min(next.bytes, touch_bytes);
    all.populate(next.position, bytes, false);
    next = {next.position + bytes, next.bytes - bytes};
    if (next.bytes == 0) untouched.pop_back();
}

void Consumer::Impl::tell(Event event) {
    if (events.size() == events_max) {
        events.pop_front();
        stats.events_missed++;
    }
    if (event.kind == Event::Kind::producer_joined) stats.producers_joined++;
    events.push_back(std::move(event));
}

// New producers and dead ones. A few hundred ns per active lane.
void Consumer::Impl::look_around() {
    looked_ns = monotonic_ns();
    const std::uint32_t arrivals = map.consumer_bell().arrivals.load();
    // A producer may die between taking a lane and saying so: look without being asked, too.
    const bool look_everywhere =
        arrivals != arrivals_seen || looked_ns - looked_everywhere_ns > look_everywhere_ns;
    if (look_everywhere) looked_everywhere_ns = looked_ns;
    const bool unlinked = look_everywhere && !map.segment().linked();
    arrivals_seen = arrivals;
    // Somebody has written over what we said: producers would ask, and nobody answers.
    if (!counts_groups && peek(control().max_open_groups) != 0) asks_nobody = false;
    std::erase_if(active, [&](std::uint32_t lane) { return retire_if_ended(lane); });
    if (turn >= active.size()) turn = 0;
    for (std::uint32_t lane = 0; look_everywhere && lane < map.geometry().lane_count; lane++) {
        if (feeds[lane] && feeds[lane]->show_again()) {
            tell(feeds[lane]->event(Event::Kind::torn));
        }
        if (map.lane_is_idle(lane) && (feeds[lane] || map.lane_is_sound(lane))) continue;
        if (!feeds[lane]) {
            // Tried again with the next look; told once.
            if (auto opened = open_lane(lane, true); !opened && !refused[lane]) {
                refused[lane] = true;
                tell({Event::Kind::lane_failed,
                      lane,
                      observe(map.owner(lane).epoch),
                      {},
                      0,
                      opened.error().to_string()});
            }
        } else if (!feeds[lane]->active()) {
            feeds[lane]->begin_epoch();
            if (std::ranges::find(active, lane) == active.end()) active.push_back(lane);
            greet(lane);
        }
    }
    look_gap_ns = look_gap(active.size());
    if (unlinked) forsaken = is_forsaken();
}

// Asked once the name is gone: who takes a lane now sees that, and leaves it.
bool Consumer::Impl::is_forsaken() const {
    if (!active.empty()) return false;
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        if (!map.lane_is_idle(lane) || map.producer_alive(lane)) return false;
    }
    return true;
}

// The same while nothing arrives, and a record may at any moment: a few lanes at a time, each in
// its turn, and all of them once a second, or if we have not been here for long.
void Consumer::Impl::look_at_some() {
    const std::int64_t now = monotonic_ns();
    if (now - looked_everywhere_ns > look_everywhere_ns) return look_around();
    const auto gaps = static_cast<std::size_t>((now - looked_ns) / look_gap_ns);
    for (std::size_t left = std::min(gaps * look_lanes(active.size()), active.size()); left > 0;
         left--) {
        if (look_turn >= active.size()) look_turn = 0;
        if (!retire_if_ended(active[look_turn])) {
            look_turn++;
            continue;
        }
        active.erase(active.begin() + static_cast<std::ptrdiff_t>(look_turn));
        if (turn > look_turn) turn--;
        if (turn >= active.size()) turn = 0;
    }
    looked_ns = now;
    look_gap_ns = look_gap(active.size());
}

// Whether the lane needs no polling any more.
bool Consumer::Impl::retire_if_ended(std::uint32_t lane) {
    LaneFeed& feed = *feeds[lane];
    // Death first, then the tail: what it committed before it died is still to come.
    if (!feed.active()) return feed.drained();
    if (!feed.ended(map) || !feed.drained()) return false;
    tell(feed.retire(map));
    return true;
}

// The counters in the segment, of all consumers so far.
ConsumerStats Consumer::Impl::totals() const {
    ConsumerStats sum{};
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        const ReaderEntry& entry = map.entry(lane);
        sum.released += peek(entry.released);
        sum.lost += peek(entry.lost);
        sum.duplicates += peek(entry.duplicates);
        sum.torn += peek(entry.torn);
        sum.producers_lost += peek(entry.producers_lost);
        sum.producers_closed += peek(entry.producers_closed);
        sum.dropped_bytes += peek(entry.dropped_bytes);
    }
    return sum;
}

}  // namespace rollring
