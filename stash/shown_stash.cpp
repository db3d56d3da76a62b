#include "shown_stash.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "account_page.hpp"
#include "group_places.hpp"
#include "rollring/ring.hpp"

namespace rollring {

Result<void> ShownStash::open() {
    auto opened = GroupBoard::open(core_->map(), core_->control());
    if (!opened) return std::unexpected(opened.error());
    board_.emplace(std::move(*opened));
    return {};
}

void ShownStash::start(std::uint64_t max_open_groups, bool leased_on_top) {
    max_open_groups_ = max_open_groups;
    leased_on_top_ = leased_on_top;
    inherited_groups_ = peek(core_->control().open_groups);
    show_account(true);
    show_bounds();
}

void ShownStash::name(std::uint32_t index, std::string_view instance_id) {
    if (board_->wants_name(index)) board_->name(index, instance_id);
}

void ShownStash::note_caught_up() {
    caught_up_ = true;
    inherited_groups_ = 0;
    room_->forget_inherited();
}

// Stores only a change: producers read this line with each group.
void ShownStash::show_open_groups() {
    const std::uint64_t count = std::max<std::uint64_t>(groups_->open_groups(), inherited_groups_);
    std::atomic<std::uint64_t>& shown = core_->control().open_groups;
    const std::uint64_t said = peek(shown);
    if (said == count) return;
    room_grew_ |= count < said;
    shown.store(count);
}

// Repeated all the time: producers would wait forever if another process had overwritten a bound.
void ShownStash::show_bounds() {
    ReaderControl& control = core_->control();
    keep(control.max_open_bytes,
         max_open_bytes_ == 0 ? 0 : std::max(max_open_bytes_, widened_bytes_));
    std::uint64_t groups = std::max(max_open_groups_, widened_groups_);
    if (leased_on_top_) {
        const std::uint64_t most = core_->map().geometry().open_groups_most();
        groups = std::max(groups, std::min(max_open_groups_ + groups_->leased_groups(), most));
    }
    room_grew_ |= groups > peek(control.max_open_groups);
    keep(control.max_open_groups, groups);
}

bool ShownStash::widen(std::uint64_t taken) {
    const ReaderControl& control = core_->control();
    const Geometry& geometry = core_->map().geometry();
    const std::uint64_t held = peek(control.held_bytes);
    const bool bytes = max_open_bytes_ != 0 && held >= peek(control.max_open_bytes);
    std::uint64_t bound = peek(control.max_open_groups);
    const bool groups = places_are_taken(taken, bound, geometry.lane_count);
    while (places_are_taken(taken, bound, geometry.lane_count)) bound++;
    if ((!bytes && !groups) || bound > geometry.open_groups_most()) return false;
    if (bytes) widened_bytes_ = held + 1;
    if (groups) widened_groups_ = bound;
    room_grew_ = true;
    show_bounds();
    return true;
}

void ShownStash::narrow() {
    if (widened_groups_ == 0 && widened_bytes_ == 0) return;
    widened_groups_ = 0;
    widened_bytes_ = 0;
    show_bounds();
}

// Wakes them when there may be a place, and from time to time in any case.
void ShownStash::wake_openers() {
    constexpr std::int64_t every_ns = 10'000'000;
    Bell& bell = core_->map().consumer_bell();
    if (bell.openers.load() == 0) return;
    const std::int64_t now_ns = monotonic_ns();
    grow_room(now_ns);
    if (!room_grew_ && now_ns - woke_ns_ < every_ns) return;
    room_grew_ = false;
    woke_ns_ = now_ns;
    core_->roster().ring_openers();
}

// Grows the spill in memory: for the groups that waiting producers want to open, and for two more
// groups, so that no producer need wait for it. Not in the overflow file: as long as anything
// moves, these groups wait for memory.
void ShownStash::grow_room(std::int64_t now_ns) {
    std::uint64_t more = room_->ahead_bytes();
    for (const std::uint32_t lane : core_->roster().active()) {
        more = std::max(more, wish_of(core_->map(), lane).place_bytes);
    }
    grow_for(more, [&](Spill& spill, std::uint64_t usable) {
        static_cast<void>(spill.grow_in_memory(usable, core_->map(), now_ns));
    });
}

// Calls `grow` with the bytes that the spill must hold so that claims of `more_bytes` fit, unless
// they fit already.
template <class Grow>
void ShownStash::grow_for(std::uint64_t more_bytes, Grow grow) {
    // Claims made while no stash read the ring count each producer of a group.
    Spill* const spill = evacuation_->spill();
    if (spill == nullptr || !caught_up_) return;
    const std::span<const std::uint32_t> lanes = core_->roster().active();
    if (room_->has_room(more_bytes, lanes)) return;
    const std::uint64_t kept =
        room_->room_bytes() - std::min(room_->room_bytes(), spill->usable_bytes());
    grow(*spill, room_->owed_bytes() + room_->claimed_bytes(lanes) + more_bytes - kept);
    show_room_of(*spill);
}

void ShownStash::note_back() {
    if (ran_short_) return;
    const std::span<const std::uint32_t> lanes = core_->roster().active();
    ran_short_ = std::ranges::any_of(lanes, [&](std::uint32_t lane) {
        const std::uint64_t wish = wish_of(core_->map(), lane).place_bytes;
        return wish != 0 && !room_->has_room(wish, lanes);
    });
}

void ShownStash::make_room_ahead(std::uint64_t records) {
    if (!ran_short_) return;
    const std::int64_t now_ns = monotonic_ns();
    grow_for(room_->claim_bytes(records), [&](Spill& spill, std::uint64_t usable) {
        spill.grow_ahead(usable, core_->map(), now_ns);
    });
    if (room_grew_) wake_openers();
}

// Each group once: one call may touch it several times.
void ShownStash::show_touched(std::int64_t now_ns, bool has_tombstone) {
    auto& touched = groups_->touched();
    std::ranges::sort(touched);
    const auto twice = std::ranges::unique(touched);
    touched.erase(twice.begin(), twice.end());
    for (const std::uint32_t index : touched) {
        board_->show(index, groups_->group(index), now_ns, has_tombstone);
        room_->owes(index, groups_->members_awaited(groups_->group(index)),
                    groups_->group(index).state == GroupState::free);
        if (!board_->wants_name(index)) continue;
        const auto record = groups_->group(index).any_record();
        if (record) board_->name(index, (*records_)[*record].view.instance_id());
    }
    touched.clear();
}

GroupStat ShownStash::stat_of(std::uint32_t index, std::int64_t now_ns) const {
    const Group& group = groups_->group(index);
    const auto record = group.any_record();
    const std::int64_t changed_ns = board_->changed_ns(index);
    GroupStat stat{.key = group.key,
                   .instance_id = {},
                   .state = group.state,
                   .age_ns = now_ns - group.opened_ns,
                   .unchanged_ns = changed_ns != 0 ? age_ns(now_ns, changed_ns) : -1,
                   .size = group.size,
                   .complete = group.complete,
                   .failed = group.failed,
                   .records = static_cast<std::uint32_t>(group.total.records),
                   .tokens = group.total.tokens,
                   .missing = group.missing(),
                   .producers = {},
                   .lanes = {}};
    if (record) stat.instance_id = printable((*records_)[*record].view.instance_id());
    for (const auto& [lane, epoch] : group.senders()) {
        stat.producers.push_back(load_sender(core_->map(), lane, epoch));
        stat.lanes.push_back(lane);
    }
    return stat;
}

std::vector<GroupStat> ShownStash::oldest_open(std::size_t count, std::int64_t now_ns) const {
    std::vector<GroupStat> found;
    const auto oldest = groups_->oldest_open(count);
    found.reserve(oldest.size());
    for (const std::uint32_t index : oldest) {
        found.push_back(stat_of(index, now_ns));
    }
    return found;
}

std::string ShownStash::oldest_text(std::size_t count, std::int64_t now_ns) const {
    std::string text;
    for (const GroupStat& group : oldest_open(count, now_ns)) {
        text += fmt::format("{}({})", text.empty() ? "; the oldest: " : ", ", group.to_string());
    }
    return text;
}

void ShownStash::show_room_of(const Spill& spill) {
    LaneLoad lanes(room_->lane_share());
    for (const std::uint32_t lane : core_->roster().active()) {
        const LaneFeed& feed = core_->roster().feed(lane);
        if (!feed.is_spill()) lanes.add(feed.pinned_bytes(), feed.unreleased_bytes());
    }
    room_grew_ |= room_->show(lanes, {.live_bytes = spill.live_bytes(),
                                      .usable_bytes = spill.usable_bytes(),
                                      .usable_most_bytes = spill.usable_most_bytes()});
}

void ShownStash::show_room() {
    if (Spill* const own = evacuation_->spill(); own != nullptr) {
        own->note_live(core_->roster().feed(core_->map().geometry().spill_lane()));
        show_room_of(*own);
    } else {
        room_->show_no_room();
    }
    if (room_->runs_short(core_->roster().active())) grow_room(monotonic_ns());
}

// For readers outside: producers that wait to open a group, and people.
void ShownStash::show_account(bool room_changed) {
    ReaderControl& control = core_->control();
    if (leased_on_top_) show_bounds();
    show_open_groups();
    control.held_bytes.store(core_->roster().held_bytes());
    if (room_changed) show_room();
    StashPage& page = begin_page();
    store_account(page, groups_->account());
    store_release(page.sequence, peek(page.sequence) + 1);
    wake_openers();
}

void ShownStash::show_batch(const LatestBatch& batch) {
    StashPage& page = begin_page();
    store_latest_batch(page, batch);
    store_release(page.sequence, peek(page.sequence) + 1);
}

// Makes its sequence odd. It is odd already if a predecessor was killed while it wrote.
StashPage& ShownStash::begin_page() {
    auto& page = core_->seat().reader_pages().at<StashPage>(sizeof(ReaderControl));
    store_release(page.sequence, (peek(page.sequence) & ~std::uint64_t{1}) + 1);
    return page;
}

}  // namespace rollring
