#include "standstill.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "human.hpp"

namespace rollring {
namespace {

constexpr std::int64_t patience_ns = 1'000'000'000;
// Waits of this length are a standstill and not a passing moment. A producer that may choose asks
// again sooner than that.
constexpr std::int64_t standstill_ns = 20'000'000;
constexpr std::int64_t stall_told_every_ns = 10'000'000'000;

}  // namespace

// Counts the producers that wait for room that could not be made, or that may not open a group.
Waits Standstill::who_waits() const {
    Waits waits;
    const std::uint64_t bound = peek(core_->map().control().max_open_groups);
    for (const std::uint32_t lane : core_->roster().active()) {
        const LaneFeed& feed = core_->roster().feed(lane);
        if (feed.is_spill() || !feed.active()) continue;
        const Wish wish = wish_of(core_->map(), lane);
        waits.producers++;
        waits.announced += announced_groups(core_->map(), lane, bound);
        waits.tails += observe(core_->map().owner(lane).tail) + wish.room_bytes + wish.place_bytes;
        if (wish.room_bytes != 0 && !fits(core_->map(), feed, wish.room_bytes)) {
            waits.for_room++;
            waits.room_lane = lane;
            waits.room_bytes = wish.room_bytes;
        } else if (wish.place_bytes != 0 &&
                   !room_->lets_in(wish.place_bytes, core_->roster().active())) {
            waits.for_place++;
            waits.can_choose += wish.can_choose ? 1 : 0;
            waits.place_bytes = std::min(waits.place_bytes, wish.place_bytes);
        }
    }
    return waits;
}

// No record can arrive any more that would complete a batch: a producer has no room; or it may not
// open another group, although all open groups are complete and no announced one is missing, or
// although nothing arrives for the others (the missing members may lie behind the group that may
// not be opened). The ready groups then ship as a smaller batch.
bool Standstill::stuck(const Waits& waits, std::int64_t now_ns) const {
    if (groups_->ready_groups() == 0 || awaits_leases()) return false;
    if (waits.for_room != 0) return true;
    if (waits.for_place == 0) return false;
    const bool all_complete =
        waits.announced == 0 && groups_->ready_groups() == groups_->open_groups();
    return all_complete || now_ns - came_ns_ > patience_ns || stands_still(waits, now_ns);
}

// All producers wait for things that only this stash can give: nothing will arrive by itself. Or
// some wait, and the others have sent nothing for long: they may have nothing more to send.
bool Standstill::stands_still(const Waits& waits, std::int64_t now_ns) const {
    if (waits.tails != tails_ || now_ns - since_ns_ < standstill_ns) return false;
    return waits.all() || (waits.any() && impatient_);
}

// Groups that fit together were let in, so at least one of them can be completed. If all producers
// wait nevertheless, its missing members lie behind a group that may not be opened, or records were
// longer than expected. One of the waiting groups is then let in beyond the bounds.
void Standstill::let_go(const Waits& waits, std::int64_t now_ns) {
    all_ = waits.all();
    impatient_ |= waits.any() && now_ns - std::max(came_ns_, moved_ns_) > patience_ns;
    if (waits.tails != tails_) {
        tails_ = waits.tails;
        since_ns_ = now_ns;
        return;
    }
    if (!stands_still(waits, now_ns) || awaits_leases()) return;
    if (waits.for_place != 0 && let_in(waits, now_ns)) return;  // then it is not a stall
    tell_stall(waits, now_ns);
}

// Lets in the smallest of the groups that wait to be opened, while there is memory for it. The
// bounds of the trainer's options give way only if no producer can do anything else: one that may
// choose perhaps waits for its engine, and sends to an open group.
bool Standstill::let_in(const Waits& waits, std::int64_t now_ns) {
    const bool widened = waits.all() && waits.can_choose == 0 &&
                         shown_->widen(room_->taken_places(core_->roster().active()));
    bool grown = false;
    if (Spill* const spill = evacuation_->spill(); spill != nullptr) {
        const std::uint64_t needed = room_->owed_bytes() +
                                     room_->claimed_bytes(core_->roster().active()) +
                                     waits.place_bytes;
        const std::uint64_t before = spill->reserved_bytes();
        static_cast<void>(spill->grow(needed, core_->map(), now_ns));
        room_->widen(needed);  // until the next record comes
        grown = spill->reserved_bytes() > before;
    }
    shown_->show_account(true);
    since_ns_ = now_ns;
    return widened || grown;
}

// Reports the stall after a second, and again every ten.
void Standstill::tell_stall(const Waits& waits, std::int64_t now_ns) {
    const Spill* const spill = evacuation_->spill();
    const std::int64_t began_ns = std::max(came_ns_, moved_ns_);
    if (now_ns - began_ns < patience_ns || now_ns - told_ns_ < stall_told_every_ns) return;
    told_ns_ = now_ns;
    std::string why =
        fmt::format("no progress is possible: of {}, {} wait to open a group and {} for room",
                    counted(waits.producers, "producer"), waits.for_place, waits.for_room);
    if (waits.for_room != 0) {
        why += fmt::format(" (lane {}: {})", waits.room_lane, human_bytes(waits.room_bytes));
    }
    const std::uint64_t bound = peek(core_->map().control().max_open_groups);
    if (places_are_taken(room_->taken_places(core_->roster().active()), bound,
                         core_->map().geometry().lane_count)) {
        why += fmt::format(
            "; max_open_groups lets {} open at once: raise it, or close "
            "producers that have nothing more to send",
            bound);
    }
    const std::uint64_t live = spill != nullptr ? spill->live_bytes() : 0;
    const std::uint64_t most = spill != nullptr ? spill->most_bytes() : 0;
    const Overflow* const overflow = core_->seat().overflow();
    why += fmt::format(
        "; {} open and none complete, the spill holds {} of {}{}; "
        "'rollring groups' shows the missing members. Send the groups in the same order from all "
        "producers, or create the ring with more --spill-bytes or {}",
        counted(groups_->open_groups(), "group"), human_bytes(live), human_bytes(most),
        shown_->oldest_text(3, now_ns),
        overflow == nullptr ? "a directory on a disk as --overflow"
                            : "--overflow-bytes (its file is " + overflow->path() + ")");
    if (overflow != nullptr && !overflow->usable()) why += "; " + overflow->problem();
    if (spill != nullptr && !spill->grow_error().empty()) {
        why += "; " + spill->grow_error();
    }
    events_->push({Event::Kind::stalled, waits.room_lane, 0, {}, 0, std::move(why)});
}

}  // namespace rollring
