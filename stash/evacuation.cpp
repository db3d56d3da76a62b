#include "evacuation.hpp"

#include <algorithm>

namespace rollring {

// LaneWriter's own test, without the jump over pinned bytes.
bool fits(const RingMap& map, const LaneFeed& feed, std::uint64_t bytes) {
    const std::uint64_t capacity = feed.capacity_bytes();
    const std::uint64_t tail = observe(map.owner(feed.lane()).tail);
    const std::uint64_t head = feed.head();
    if (bytes > capacity || head >= tail) return true;  // refused, or nothing is held
    const std::uint64_t at = tail % capacity;
    const std::uint64_t lap = tail - at;
    if (head >= lap) return capacity - at >= bytes || head - lap >= bytes + line_bytes;
    if (lap - head > capacity) return false;
    const std::uint64_t end = head - (lap - capacity);
    return at > end ? capacity - at >= bytes : end - at >= bytes + line_bytes;
}

Result<void> Evacuation::open() {
    const std::uint32_t lane = core_->map().geometry().spill_lane();
    if (core_->map().geometry().spill_bytes == 0) return {};
    ProducerRoster& roster = core_->roster();
    if (!roster.has(lane)) {
        if (auto feed = roster.open_lane(lane, false); !feed) return feed;
    }
    if (auto set = set_spill_tail(core_->map(), roster.feed(lane).restart_at()); !set) return set;
    auto opened = Spill::open(core_->map(), core_->control(), core_->seat().overflow());
    if (!opened) return std::unexpected(opened.error());
    spill_.emplace(std::move(*opened));
    return {};
}

// Moves the oldest unreleased record of a lane, which must be `from`, to the spill.
std::optional<RecordRef> Evacuation::evacuate(const RecordRef& from, const Frame& frame) {
    if (!spill_) return std::nullopt;
    LaneFeed& own = core_->roster().feed(core_->map().geometry().spill_lane());
    const auto moved =
        spill_->move({from, frame, core_->frame_of(from), &core_->roster().feed(from.lane)}, own,
                     core_->journal());
    if (moved) ring_bell(core_->map().lane_bell(from.lane));
    return moved;
}

// Moves the oldest unreleased record of a lane.
Evacuation::Move Evacuation::move_oldest(LaneFeed& feed) {
    RecordRef from{};
    Frame frame;
    if (!feed.oldest(from, frame)) return Move::stays;
    TrajectoryView view;
    if (!core_->view(from, view)) return Move::stays;
    const auto is_it = [&](std::uint32_t number) { return (*records_)[number].ref == from; };
    const auto number = groups_->movable(view.group_key(), is_it);
    if (!number) return Move::stays;
    // The identity as it was checked when the record was read: the frame may have been overwritten
    // since.
    frame.lane = (*records_)[*number].producer_lane;
    frame.epoch = (*records_)[*number].producer_epoch;
    frame.sequence = (*records_)[*number].sequence;
    const auto to = evacuate(from, frame);
    if (!to) return Move::no_room;
    (*records_)[*number].view.follow(core_->payload(from), core_->payload(*to));
    (*records_)[*number].ref = *to;
    return Move::moved;
}

// The same, after making room in the spill if necessary and possible.
bool Evacuation::evacuate_oldest(LaneFeed& feed, std::int64_t now_ns) {
    Move done = move_oldest(feed);
    if (done != Move::no_room) return done == Move::moved;
    LaneFeed& own = core_->roster().feed(core_->map().geometry().spill_lane());
    RecordRef from{};
    Frame frame;
    if (!feed.oldest(from, frame)) return false;
    if (compact(own, 0)) done = move_oldest(feed);
    if (done == Move::no_room &&
        spill_->grow(spill_->live_bytes() + 2 * from.bytes(), core_->map(), now_ns)) {
        done = move_oldest(feed);
    }
    return done == Move::moved;
}

// Compaction: copies the oldest records to the end and so frees the dead bytes between them, in one
// pass at most.
bool Evacuation::compact(LaneFeed& own, std::uint64_t dead_bytes_kept) {
    const auto dead = [&] {
        return spill_->occupied_bytes(own) -
               std::min(spill_->occupied_bytes(own), own.unreleased_bytes());
    };
    const std::uint64_t end = own.read_position();
    bool moved = false;
    while (dead() > dead_bytes_kept && own.oldest_position() < end &&
           move_oldest(own) == Move::moved) {
        moved = true;
    }
    return moved;
}

// The oldest record belongs to an open group, and a quarter of the lane was delivered after it.
bool Evacuation::straggles(const LaneFeed& feed) const {
    const std::uint64_t quarter = feed.capacity_bytes() / 4;
    if (feed.delivered_since_oldest() < quarter) return false;
    RecordRef oldest{};
    Frame frame;
    TrajectoryView view;
    if (!feed.oldest(oldest, frame) || !core_->view(oldest, view)) return false;
    return feed.delivered_since_oldest() - std::min(feed.delivered_since_oldest(), frame.bytes) >=
               quarter &&
           groups_->is_open(view.group_key());
}

// Whether most of the pinned bytes are dead, in a lane that pins more than its share.
bool Evacuation::holds_dead_bytes(const LaneFeed& feed) const {
    const std::uint64_t pinned = feed.pinned_bytes();
    return pinned > room_->lane_share() &&
           pinned - feed.unreleased_bytes() > feed.unreleased_bytes();
}

// Evacuates stragglers and, if `asked`, the records that keep a waiting producer from its room.
// True if a record was moved.
bool Evacuation::make_room(bool asked, std::int64_t now_ns) {
    if (!spill_) return false;
    bool moved = false;
    // A producer that waits to open a group may need the memory of dead records behind a straggler.
    const bool opener =
        asked && std::ranges::any_of(core_->roster().active(), [&](std::uint32_t lane) {
            return wish_of(core_->map(), lane).place_bytes != 0;
        });
    for (const std::uint32_t lane : core_->roster().active()) {
        LaneFeed& feed = core_->roster().feed(lane);
        if (feed.is_spill()) continue;
        while (feed.blocked() && feed.pinned_bytes() != 0 && evacuate_oldest(feed, now_ns)) {
            moved = true;
        }
        if (straggles(feed) || (opener && holds_dead_bytes(feed))) {
            while (feed.pinned_bytes() != 0 && move_oldest(feed) == Move::moved) {
                moved = true;
                if (feed.pinned_bytes() <= room_->lane_share()) break;
            }
        }
        if (!asked) continue;
        const std::uint64_t wanted = wish_of(core_->map(), lane).room_bytes;
        while (wanted != 0 && !fits(core_->map(), feed, wanted) && evacuate_oldest(feed, now_ns)) {
            moved = true;
        }
    }
    LaneFeed& own = core_->roster().feed(core_->map().geometry().spill_lane());
    const std::uint64_t occupied = spill_->occupied_bytes(own);
    const std::uint64_t reserved = spill_->reserved_bytes();
    if (occupied - std::min(occupied, own.unreleased_bytes()) >= reserved / 4) {
        moved |= compact(own, reserved / 8);
    }
    return moved;
}

}  // namespace rollring
