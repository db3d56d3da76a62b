// Room for producers: records of groups that stay incomplete are moved out of lanes which they pin.

#include "stash_impl.hpp"

namespace rollring {
namespace {

constexpr std::int64_t patience_ns = 1'000'000'000;

// Whether the producer of this lane sleeps, or is about to.
bool producer_waits(const RingMap& map, std::uint32_t lane) {
    return map.lane_bell(lane).waiting.load() != 0;
}

}  // namespace

// Moves the oldest unreleased record of a lane. False if it must stay: leased, damaged, or no room.
bool Stash::Impl::move_oldest(LaneFeed& feed) {
    RecordRef from{};
    Frame frame;
    if (!feed.oldest(from, frame)) return false;
    TrajectoryView view;
    if (!consumer.view(from, view)) return false;
    const auto is_it = [&](std::uint32_t place) { return held[place].ref == from; };
    const auto place = groups.movable(view.group_key(), is_it);
    if (!place) return false;
    const auto to = ring().evacuate(from, frame);
    if (!to) return false;
    held[*place].view.follow(ring().payload(from), ring().payload(*to));
    held[*place].ref = *to;
    return true;
}

bool Stash::Impl::evacuate_from(LaneFeed& feed) {
    if (!move_oldest(feed)) return false;
    while (feed.pinned_bytes() > feed.capacity_bytes() / 2 && move_oldest(feed)) {
    }
    return true;
}

// The oldest are copied to the end, past the dead bytes between them. Once around at the most.
bool Stash::Impl::compact(LaneFeed& spill) {
    const std::uint64_t capacity = spill.capacity_bytes();
    const auto dead = [&] { return spill.pinned_bytes() - spill.unreleased_bytes(); };
    if (dead() < capacity / 4) return false;
    const std::uint64_t end = spill.read_position();
    bool moved = false;
    while (dead() >= capacity / 8 && spill.oldest_position() < end && move_oldest(spill)) {
        moved = true;
    }
    return moved;
}

// `blocked`: everything that came has been read, and no batch can be cut of it.
// True if something was moved.
bool Stash::Impl::relieve(bool blocked) {
    if (!ring().spill) return false;
    bool moved = false;
    for (const std::uint32_t lane : ring().active) {
        LaneFeed& feed = *ring().feeds[lane];
        if (feed.is_spill()) continue;
        while (feed.blocked() && feed.pinned_bytes() != 0 && move_oldest(feed)) moved = true;
        const std::uint64_t capacity = feed.capacity_bytes();
        const bool straggler = feed.delivered_since_oldest() >= capacity / 4;
        const bool full =
            blocked && feed.pinned_bytes() > capacity / 2 && producer_waits(ring().map, lane);
        if (straggler || full) moved |= evacuate_from(feed);
    }
    return moved | compact(*ring().feeds[ring().map.geometry().spill_lane()]);
}

// Nothing can come any more that would complete a batch: a producer has no room, or may not open
// another group while all that are open are complete, or while nothing comes for the others (what
// they miss may lie behind the group that may not be opened). What is ready ships as a smaller
// batch.
bool Stash::Impl::stuck(std::int64_t now_ns) const {
    if (groups.ready_groups() == 0 || groups.leased_batches() != 0) return false;
    for (const std::uint32_t lane : ring().active) {
        const LaneFeed& feed = *ring().feeds[lane];
        if (feed.pinned_bytes() > feed.capacity_bytes() / 2 && producer_waits(ring().map, lane)) {
            return true;
        }
    }
    if (ring().map.consumer_bell().openers.load() == 0) return false;
    return groups.ready_groups() == groups.open_groups() || now_ns - came_ns > patience_ns;
}

}  // namespace rollring
