// Room for producers: records of groups that stay incomplete are moved out of lanes which they pin,
// and where every producer waits, something is let go.

#include <fmt/format.h>

#include <algorithm>

#include "human.hpp"
#include "stash_impl.hpp"

namespace rollring {
namespace {

constexpr std::int64_t patience_ns = 1'000'000'000;
// Every producer waits, and has waited for so long: it is no passing moment. One that may choose
// asks again sooner than that.
constexpr std::int64_t standstill_ns = 20'000'000;
constexpr std::int64_t stall_told_every_ns = 10'000'000'000;

}  // namespace

// Only where it says something else: whoever asks reads this line with each group.
void Stash::Impl::publish_open_groups() {
    const std::uint64_t count = std::max<std::uint64_t>(groups.open_groups(), inherited_groups);
    std::atomic<std::uint64_t>& shown = ring().control().open_groups;
    const std::uint64_t said = peek(shown);
    if (said == count) return;
    room_grew |= count < said;
    shown.store(count);
}

// Again and again: producers would wait for ever where somebody has written over a bound.
void Stash::Impl::show_bounds() {
    ReaderControl& control = ring().control();
    keep(control.max_open_bytes, options.max_open_bytes);
    keep(control.max_open_groups, max_open_groups);
}

// When there may be a place for them, and now and then in any case.
void Stash::Impl::wake_openers() {
    constexpr std::int64_t every_ns = 10'000'000;
    Bell& bell = ring().map.consumer_bell();
    if (bell.openers.load() == 0) return;
    const std::int64_t now_ns = monotonic_ns();
    grow_room(now_ns);
    if (!room_grew && now_ns - woke_ns < every_ns) return;
    room_grew = false;
    woke_ns = now_ns;
    bell.openers.store(0);
    for (const std::uint32_t lane : ring().active) ring_bell(ring().map.lane_bell(lane));
}

// More memory for the spill: for what those wait for who may not open a group, and for two groups
// more, so that nobody need wait for it. Not the overflow file: as long as anything moves, they
// wait for memory.
void Stash::Impl::grow_room(std::int64_t now_ns) {
    // Claims that were made while nobody read count each producer of a group.
    if (!ring().spill || !caught_up) return;
    Spill& spill = *ring().spill;
    std::uint64_t wanted = room.ahead_bytes();
    for (const std::uint32_t lane : ring().active) {
        wanted = std::max(wanted, wish_of(ring().map, lane).place_bytes);
    }
    wanted += room.owed_bytes() + room.claimed_bytes(ring().active);
    const std::uint64_t kept =
        room.room_bytes() - std::min(room.room_bytes(), spill.usable_bytes());
    if (wanted <= room.room_bytes()) return;
    static_cast<void>(spill.grow_in_memory(wanted - kept, ring().map, now_ns));
    room_grew |= room.publish(ring().active, ring().feeds, &spill);
}

// Moves the oldest unreleased record of a lane.
Stash::Impl::Move Stash::Impl::move_oldest(LaneFeed& feed) {
    RecordRef from{};
    Frame frame;
    if (!feed.oldest(from, frame)) return Move::stays;
    TrajectoryView view;
    if (!consumer.view(from, view)) return Move::stays;
    const auto is_it = [&](std::uint32_t place) { return held[place].ref == from; };
    const auto place = groups.movable(view.group_key(), is_it);
    if (!place) return Move::stays;
    // Who it is was checked when it came; what its frame says now, nobody has checked.
    frame.lane = held[*place].producer_lane;
    frame.epoch = held[*place].producer_epoch;
    frame.sequence = held[*place].sequence;
    const auto to = ring().evacuate(from, frame);
    if (!to) return Move::no_room;
    held[*place].view.follow(ring().payload(from), ring().payload(*to));
    held[*place].ref = *to;
    return Move::moved;
}

// The same, and makes room in the spill for it where that can be done.
bool Stash::Impl::evacuate_oldest(LaneFeed& feed, std::int64_t now_ns) {
    Move done = move_oldest(feed);
    if (done != Move::no_room) return done == Move::moved;
    Spill& spill = *ring().spill;
    LaneFeed& own = *ring().feeds[ring().map.geometry().spill_lane()];
    RecordRef from{};
    Frame frame;
    if (!feed.oldest(from, frame)) return false;
    if (compact(own, 0)) done = move_oldest(feed);
    if (done == Move::no_room &&
        spill.grow(spill.live_bytes() + 2 * from.bytes(), ring().map, now_ns)) {
        done = move_oldest(feed);
    }
    return done == Move::moved;
}

// The oldest are copied to the end, past the dead bytes between them. Once around at the most.
bool Stash::Impl::compact(LaneFeed& own, std::uint64_t dead_bytes_kept) {
    const Spill& spill = *ring().spill;
    const auto dead = [&] {
        return spill.occupied_bytes(own) -
               std::min(spill.occupied_bytes(own), own.unreleased_bytes());
    };
    const std::uint64_t end = own.read_position();
    bool moved = false;
    while (dead() > dead_bytes_kept && own.oldest_position() < end &&
           move_oldest(own) == Move::moved) {
        moved = true;
    }
    return moved;
}

// A group that is still open has its record at the lane's head, while so much came after it.
bool Stash::Impl::straggles(const LaneFeed& feed) const {
    const std::uint64_t quarter = feed.capacity_bytes() / 4;
    if (feed.delivered_since_oldest() < quarter) return false;
    RecordRef oldest{};
    Frame frame;
    TrajectoryView view;
    if (!feed.oldest(oldest, frame) || !consumer.view(oldest, view)) return false;
    return feed.delivered_since_oldest() - std::min(feed.delivered_since_oldest(), frame.bytes) >=
               quarter &&
           groups.is_open(view.group_key());
}

// Where they are the larger part of what keeps the lane beyond its share.
bool Stash::Impl::holds_dead_bytes(const LaneFeed& feed) const {
    const std::uint64_t pinned = feed.pinned_bytes();
    return pinned > room.lane_share() && pinned - feed.unreleased_bytes() > feed.unreleased_bytes();
}

// Stragglers leave their lane; and, `asked`, what keeps a producer from the room that it waits for.
// True if something was moved.
bool Stash::Impl::relieve(bool asked, std::int64_t now_ns) {
    if (!ring().spill) return false;
    bool moved = false;
    // Who may not open a group waits for memory that dead records may hold, behind a straggler.
    const bool opener = asked && std::ranges::any_of(ring().active, [&](std::uint32_t lane) {
                            return wish_of(ring().map, lane).place_bytes != 0;
                        });
    for (const std::uint32_t lane : ring().active) {
        LaneFeed& feed = *ring().feeds[lane];
        if (feed.is_spill()) continue;
        while (feed.blocked() && feed.pinned_bytes() != 0 && evacuate_oldest(feed, now_ns)) {
            moved = true;
        }
        if (straggles(feed) || (opener && holds_dead_bytes(feed))) {
            while (feed.pinned_bytes() != 0 && move_oldest(feed) == Move::moved) {
                moved = true;
                if (feed.pinned_bytes() <= room.lane_share()) break;
            }
        }
        if (!asked) continue;
        const std::uint64_t wanted = wish_of(ring().map, lane).room_bytes;
        while (wanted != 0 && !fits(ring().map, feed, wanted) && evacuate_oldest(feed, now_ns)) {
            moved = true;
        }
    }
    LaneFeed& own = *ring().feeds[ring().map.geometry().spill_lane()];
    const std::uint64_t occupied = ring().spill->occupied_bytes(own);
    const std::uint64_t reserved = ring().spill->reserved_bytes();
    if (occupied - std::min(occupied, own.unreleased_bytes()) >= reserved / 4) {
        moved |= compact(own, reserved / 8);
    }
    return moved;
}

// Whether a producer waits for room that could not be made, or may not open a group.
Stash::Impl::Waits Stash::Impl::who_waits() const {
    Waits waits;
    for (const std::uint32_t lane : ring().active) {
        const LaneFeed& feed = *ring().feeds[lane];
        if (feed.is_spill() || !feed.active()) continue;
        const Wish wish = wish_of(ring().map, lane);
        waits.producers++;
        waits.tails += observe(ring().map.owner(lane).tail) + wish.room_bytes + wish.place_bytes;
        if (wish.room_bytes != 0 && !fits(ring().map, feed, wish.room_bytes)) {
            waits.for_room++;
            waits.room_lane = lane;
            waits.room_bytes = wish.room_bytes;
        } else if (wish.place_bytes != 0 && !room.lets_in(wish.place_bytes, ring().active)) {
            waits.for_place++;
            waits.place_bytes = std::min(waits.place_bytes, wish.place_bytes);
        }
    }
    return waits;
}

// Nothing can come any more that would complete a batch: a producer has no room, or may not open
// another group while all that are open are complete, or while nothing comes for the others (what
// they miss may lie behind the group that may not be opened). What is ready ships as a smaller
// batch.
bool Stash::Impl::stuck(const Waits& waits, std::int64_t now_ns) const {
    if (groups.ready_groups() == 0 || groups.leased_batches() != 0) return false;
    if (waits.for_room != 0) return true;
    if (waits.for_place == 0) return false;
    return groups.ready_groups() == groups.open_groups() || now_ns - came_ns > patience_ns ||
           stands_still(waits, now_ns);
}

// All producers wait, for what only this stash can give: nothing will come by itself. Or some wait,
// and of those that do not nothing has come for long: they may have nothing more to send.
bool Stash::Impl::stands_still(const Waits& waits, std::int64_t now_ns) const {
    if (waits.tails != standing.tails || now_ns - standing.since_ns < standstill_ns) return false;
    return waits.all() || (waits.any() && standing.impatient);
}

// Groups that fit together were let in, so at least one of them can be completed; if all wait all
// the same, what it misses lies behind a group that may not be opened, or records were longer than
// was to be foreseen. The smallest of those groups is let in on top, while there is memory for it.
void Stash::Impl::let_go(const Waits& waits, std::int64_t now_ns) {
    standing.all = waits.all();
    standing.impatient |= waits.any() && now_ns - std::max(came_ns, moved_ns) > patience_ns;
    if (waits.tails != standing.tails) {
        standing.tails = waits.tails;
        standing.since_ns = now_ns;
        return;
    }
    if (!stands_still(waits, now_ns) || groups.leased_batches() != 0) return;
    if (waits.for_place != 0 && ring().spill) {
        const std::uint64_t needed =
            room.owed_bytes() + room.claimed_bytes(ring().active) + waits.place_bytes;
        Spill& spill = *ring().spill;
        const std::uint64_t before = spill.reserved_bytes();
        static_cast<void>(spill.grow(needed, ring().map, now_ns));
        room.widen(needed);  // until the next record comes
        publish_account(true);
        standing.since_ns = now_ns;
        if (spill.reserved_bytes() > before) return;  // then it is no stall
    }
    tell_stall(waits, now_ns);
}

// The oldest groups that are not complete, by name, with a member that each misses.
std::string Stash::Impl::oldest_groups(std::int64_t now_ns) const {
    constexpr std::size_t named = 3;
    std::string text;
    for (const WaitingGroup& group : groups.explain(now_ns, named)) {
        text += fmt::format(
            "{}{} (has {} of {}, the first that it misses is {})",
            text.empty() ? "; the oldest: " : ", ",
            group.tag ? held[*group.tag].view.instance_id() : std::string_view("one of no name"),
            group.live, group.size, group.missing.empty() ? group.size : group.missing.front());
    }
    return text;
}

// Told after a second, and again every ten.
void Stash::Impl::tell_stall(const Waits& waits, std::int64_t now_ns) {
    const std::int64_t began_ns = std::max(came_ns, moved_ns);
    if (now_ns - began_ns < patience_ns || now_ns - standing.told_ns < stall_told_every_ns) return;
    standing.told_ns = now_ns;
    std::string why =
        fmt::format("nothing moves: of {} producers {} wait to open a group and {} for room",
                    waits.producers, waits.for_place, waits.for_room);
    if (waits.for_room != 0) {
        why += fmt::format(" (lane {}: {})", waits.room_lane, human_bytes(waits.room_bytes));
    }
    const std::uint64_t live = ring().spill ? ring().spill->live_bytes() : 0;
    const std::uint64_t most = ring().spill ? ring().spill->most_bytes() : 0;
    const Overflow* const overflow = ring().overflow_file();
    why += fmt::format(
        "; {} groups are open and none is complete, the spill holds {} of {}{}; "
        "'rollring groups' shows what they miss. Send the groups in the same order from all "
        "producers, or create the ring with more --spill-bytes or {}",
        groups.open_groups(), human_bytes(live), human_bytes(most), oldest_groups(now_ns),
        overflow == nullptr ? "with a directory to go on in as --overflow"
                            : "--overflow-bytes (its file is " + overflow->path() + ")");
    if (overflow != nullptr && !overflow->usable()) why += "; " + overflow->problem();
    if (ring().spill && !ring().spill->grow_error().empty()) {
        why += "; " + ring().spill->grow_error();
    }
    events.push_back({Event::Kind::stalled, waits.room_lane, 0, {}, 0, std::move(why)});
}

}  // namespace rollring
