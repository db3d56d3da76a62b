#include "group_room.hpp"

#include <algorithm>

#include "group_places.hpp"

namespace rollring {
namespace {

constexpr std::uint32_t records_remembered = 1024;
constexpr std::uint64_t wish_most = std::uint64_t{1} << 48;  // more than any memory; sums fit

// The lines of one lane.
std::uint32_t lane_lines(const RingMap& map) {
    return static_cast<std::uint32_t>(map.geometry().lane_bytes / line_bytes);
}
// The bytes of the whole ring.
std::uint64_t bytes_most(const Geometry& geometry) {
    return geometry.capacity(geometry.spill_lane()) + geometry.lane_count * geometry.lane_bytes;
}

}  // namespace

Wish wish_of(const RingMap& map, std::uint32_t lane) {
    if (lane >= map.geometry().lane_count) return {};  // the spill's page has no producer
    const LaneOwner& owner = map.owner(lane);
    const std::uint64_t place_bytes = observe(owner.wants_place_bytes);
    return {std::min(peek(owner.wants_room_bytes), wish_most), std::min(place_bytes, wish_most),
            place_bytes % 2 == 0};
}

GroupRoom::GroupRoom(const RingMap& map, ReaderControl& control) : map_(&map), control_(&control) {}

void GroupRoom::start(std::uint32_t group_size, std::uint32_t group_extra) {
    longest_lines_ = std::min(peek(control_->record_lines), lane_lines(*map_));
    inherited_bytes_ = std::min(control_->owed_bytes.load(), bytes_most(map_->geometry()));
    group_size_ = group_size;
    group_extra_ = group_extra;
}

void GroupRoom::saw(std::uint32_t lines) {
    longest_lines_ = std::max(longest_lines_, lines);
    if (++seen_ < records_remembered) return;
    seen_ = 0;
    longest_before_lines_ = longest_lines_;
    longest_lines_ = 0;
}

std::uint32_t GroupRoom::longest_lines() const {
    return std::max(longest_lines_, longest_before_lines_);
}

std::uint32_t GroupRoom::declared_lines(std::uint32_t lane) const {
    if (lane >= map_->geometry().lane_count) return 0;
    return std::min(peek(map_->owner(lane).record_lines), lane_lines(*map_));
}

void GroupRoom::saw_member(std::uint32_t index, std::uint32_t lines, std::uint32_t lane) {
    if (index >= owed_.size()) owed_.resize(index + std::size_t{1});
    std::uint32_t& longest = owed_[index].member_lines;
    if (longest == 0) longest = std::max(longest_lines(), declared_lines(lane));
    longest = std::max(longest, lines);
}

void GroupRoom::owes(std::uint32_t index, std::uint64_t members, bool over) {
    if (index >= owed_.size()) return;  // none of its records was read by this stash
    Owed& owed = owed_[index];
    const std::uint64_t lines = members * owed.member_lines;
    owed_total_lines_ += lines - owed.lines;
    owed.lines = lines;
    if (over) owed.member_lines = 0;
}

std::uint64_t GroupRoom::lane_share() const {
    const std::uint64_t record = std::uint64_t{longest_lines()} * line_bytes;
    const std::uint64_t third = map_->geometry().lane_bytes / 3;
    return third - std::min(third, 3 * record);
}

void GroupRoom::show_no_room() {
    keep(control_->group_size, group_size_);
    keep(control_->group_extra, group_extra_);
    keep(control_->room_bytes, std::uint64_t{0});
}

bool GroupRoom::show(const LaneLoad& lanes, const SpillLoad& spill) {
    keep(control_->group_size, group_size_);
    keep(control_->group_extra, group_extra_);
    keep(control_->record_lines, longest_lines());
    const std::uint64_t coming = owed_total_lines_ * line_bytes + lanes.owed_bytes();
    const std::uint64_t owed = std::max(coming, inherited_bytes_) + spill.live_bytes;
    if (owed < widened_owed_bytes_) widen(0);
    const std::uint64_t room = std::max(spill.usable_bytes + lanes.spare_bytes(), widened_bytes_);
    const bool more = owed < shown_owed_bytes_ || room > shown_room_bytes_;
    // A producer that sees the smaller debt sees the smaller room as well.
    if (room < shown_room_bytes_) keep(control_->room_bytes, room);
    if (owed != peek(control_->owed_bytes)) control_->owed_bytes.store(owed);
    shown_owed_bytes_ = owed;
    shown_room_bytes_ = room;
    const Geometry& geometry = map_->geometry();
    most_bytes_ = spill.usable_most_bytes + geometry.lane_count * geometry.lane_bytes;
    keep(control_->room_most, most_bytes_);
    keep(control_->room_bytes, room);
    return more;
}

std::uint64_t GroupRoom::taken_places(std::span<const std::uint32_t> lanes) const {
    const std::uint64_t bound = peek(control_->max_open_groups);
    std::uint64_t groups = peek(control_->open_groups);
    for (const std::uint32_t lane : lanes) {
        if (lane >= map_->geometry().lane_count) continue;
        groups += announced_groups(*map_, lane, bound);
    }
    return groups;
}

// The same test as the producers' own (lib/credits/admission.cpp).
bool GroupRoom::lets_in(std::uint64_t bytes, std::span<const std::uint32_t> lanes) const {
    const std::uint64_t bytes_bound = peek(control_->max_open_bytes);
    if (bytes_bound != 0 && peek(control_->held_bytes) >= bytes_bound) return false;
    const std::uint64_t bound = peek(control_->max_open_groups);
    if (places_are_taken(taken_places(lanes), bound, map_->geometry().lane_count)) return false;
    return has_room(bytes, lanes);
}

std::uint64_t GroupRoom::claim_bytes(std::uint64_t records) const {
    return records * longest_lines() * line_bytes;
}

std::uint64_t GroupRoom::ahead_bytes() const {
    return claim_bytes(2 * (std::uint64_t{group_size_} + group_extra_));
}

std::uint64_t GroupRoom::claimed_bytes(std::span<const std::uint32_t> lanes) const {
    std::uint64_t bytes = 0;
    for (const std::uint32_t lane : lanes) {
        if (lane >= map_->geometry().lane_count) continue;
        const std::uint32_t lines =
            peek(map_->owner(lane).lines_claimed) - peek(map_->entry(lane).lines_arrived);
        // As producers count it (lib/credits/admission.cpp): an implausible claim is ignored.
        const bool sound = claim_is_sound(lines * line_bytes, most_bytes_);
        if (sound && peek(map_->entry(lane).quarantine) == 0) bytes += lines * line_bytes;
    }
    return bytes;
}

}  // namespace rollring
