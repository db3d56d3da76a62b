#include "producer_roster.hpp"

#include <algorithm>
#include <utility>

namespace rollring {
namespace {

constexpr std::int64_t look_everywhere_ns = 1'000'000'000;
constexpr std::uint64_t touch_bytes = 64 << 10;  // takes a few us

// Checking a producer is a system call, and a record that arrives meanwhile waits for it. So while
// nothing arrives the lanes are checked in turn, at most ten times a millisecond: each lane every
// millisecond if there are up to ten, less often if there are more. Only with many lanes are
// several of them checked at once.
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
        case Event::Kind::producer_died:
            return "producer_died";
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
        case Event::Kind::dropped:
            return "dropped";
        case Event::Kind::size_conflict:
            return "size_conflict";
        case Event::Kind::partial:
            return "partial";
        case Event::Kind::overdue:
            return "overdue";
    }
    return "unknown";
}

Result<void> ProducerRoster::take_over() {
    const std::uint32_t spill_lane = map().geometry().spill_lane();
    if (map().geometry().spill_bytes != 0 &&
        observe(map().owner(spill_lane).tail) != observe(map().entry(spill_lane).head)) {
        if (auto opened = open_lane(spill_lane, false); !opened) return opened;
    }
    for (std::uint32_t lane = 0; lane < map().geometry().lane_count; lane++) {
        const ReaderEntry& entry = map().entry(lane);
        const bool holds = observe(entry.restart_at) != observe(entry.head);
        if (!holds && map().lane_is_idle(lane)) continue;
        if (auto opened = open_lane(lane, false); !opened) return opened;
    }
    return {};
}

Result<void> ProducerRoster::open_lane(std::uint32_t lane, bool all_ours) {
    auto feed = LaneFeed::open(map(), seat_->all(), seat_->reader_pages(), lane, all_ours);
    if (!feed) return std::unexpected(feed.error());
    feeds_[lane].emplace(std::move(*feed));
    active_.push_back(lane);
    ring_bell(map().lane_bell(lane));  // recovery may have moved its head
    if (feeds_[lane]->active()) greet(lane);
    if (feeds_[lane]->quarantined()) {
        tell(feeds_[lane]->event(Event::Kind::quarantined));
    } else if (!feeds_[lane]->problem().empty()) {
        tell(feeds_[lane]->event(Event::Kind::torn));
    }
    return {};
}

void ProducerRoster::greet(std::uint32_t lane) {
    const Span near{map().geometry().data_offset(lane), map().near_bytes()};
    std::erase_if(untouched_, [&](const Span& left) {  // left by the lane's last producer
        return left.position >= near.position && left.position < near.position + near.bytes;
    });
    untouched_.push_back(near);
    tell(feeds_[lane]->event(Event::Kind::producer_joined));
}

void ProducerRoster::touch_some() {
    Span& next = untouched_.back();
    const std::uint64_t bytes = std::min(next.bytes, touch_bytes);
    seat_->all().populate(next.position, bytes, false);
    next = {next.position + bytes, next.bytes - bytes};
    if (next.bytes == 0) untouched_.pop_back();
}

void ProducerRoster::tell(Event event) {
    joined_ += event.kind == Event::Kind::producer_joined ? 1 : 0;
    quarantines_ += event.kind == Event::Kind::quarantined ? 1 : 0;
    events_.push(std::move(event));
}

// Finds new producers and dead ones, in a few hundred ns per active lane.
void ProducerRoster::look_around() {
    looks_++;
    looked_ns_ = monotonic_ns();
    const std::uint32_t changes = map().consumer_bell().lane_changes.load();
    // A producer may die between taking a lane and announcing it: look even if no bell has rung.
    const bool look_everywhere =
        changes != changes_seen_ || looked_ns_ - looked_everywhere_ns_ > look_everywhere_ns;
    if (look_everywhere) looked_everywhere_ns_ = looked_ns_;
    // Producers learn of the removal before their tails are read: they refuse every later record.
    const bool removed = map().is_removed(look_everywhere);
    changes_seen_ = changes;
    std::erase_if(active_, [&](std::uint32_t lane) { return retire_if_ended(lane); });
    if (turn_ >= active_.size()) turn_ = 0;
    for (std::uint32_t lane = 0; look_everywhere && lane < map().geometry().lane_count; lane++) {
        if (feeds_[lane] && feeds_[lane]->show_again()) {
            tell(feeds_[lane]->event(Event::Kind::torn));
        }
        if (map().lane_is_idle(lane) && (feeds_[lane] || map().lane_is_sound(lane))) continue;
        if (!feeds_[lane]) {
            // Retried with the next look, reported once.
            if (auto opened = open_lane(lane, true); !opened && !refused_[lane]) {
                refused_[lane] = true;
                tell({Event::Kind::lane_failed,
                      lane,
                      observe(map().owner(lane).epoch),
                      {},
                      0,
                      opened.error().to_string()});
            }
        } else if (!feeds_[lane]->active()) {
            feeds_[lane]->begin_epoch();
            if (std::ranges::find(active_, lane) == active_.end()) active_.push_back(lane);
            greet(lane);
        }
    }
    look_gap_ns_ = look_gap(active_.size());
    // Not in the look that tells producers of the removal: a later look sees all records sent
    // before.
    if (removed && removed_) forsaken_ = forsaken_ || is_forsaken();
    removed_ = removed;
}

// Called once the name is gone and the producers know it: whether all records sent before have been
// read. A producer that takes a lane now sees that the name is gone, and leaves the lane.
bool ProducerRoster::is_forsaken() const {
    for (std::uint32_t lane = 0; lane < map().geometry().lane_count; lane++) {
        const bool ours = feeds_[lane] && feeds_[lane]->active();
        if (ours ? !feeds_[lane]->drained() : !map().lane_is_idle(lane)) return false;
    }
    return std::ranges::all_of(active_,
                               [&](std::uint32_t lane) { return feeds_[lane]->drained(); });
}

// look_around() for an idle ring, in which a record may come at any moment: looks at a few lanes,
// in turn; at all lanes once a second, or if the last call was long ago.
void ProducerRoster::look_at_some() {
    const std::int64_t now = monotonic_ns();
    const bool told = peek(map().policy().removed) != 0;
    if (told || now - looked_everywhere_ns_ > look_everywhere_ns) return look_around();
    const auto gaps = static_cast<std::size_t>((now - looked_ns_) / look_gap_ns_);
    for (std::size_t left = std::min(gaps * look_lanes(active_.size()), active_.size()); left > 0;
         left--) {
        if (look_turn_ >= active_.size()) look_turn_ = 0;
        if (!retire_if_ended(active_[look_turn_])) {
            look_turn_++;
            continue;
        }
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(look_turn_));
        if (turn_ > look_turn_) turn_--;
        if (turn_ >= active_.size()) turn_ = 0;
    }
    looked_ns_ = now;
    look_gap_ns_ = look_gap(active_.size());
}

// Whether the lane needs no more polling.
bool ProducerRoster::retire_if_ended(std::uint32_t lane) {
    LaneFeed& feed = *feeds_[lane];
    // Check for death first, then the tail: records committed before the death are still to be
    // read.
    if (!feed.active()) return feed.drained();
    if (!feed.ended(map()) || !feed.drained()) return false;
    // Its groups count until they have arrived. A quarantined lane announces no more.
    if (!feed.quarantined() && feed.claims().await_release()) return false;
    tell(feed.retire(map()));
    return true;
}

std::uint32_t ProducerRoster::producers() const {
    return static_cast<std::uint32_t>(
        std::ranges::count_if(active_, [&](std::uint32_t lane) { return feeds_[lane]->active(); }));
}

std::uint64_t ProducerRoster::held_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& feed : feeds_) bytes += feed ? feed->unreleased_bytes() : 0;
    return bytes;
}

}  // namespace rollring
