#include "admission.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "group_places.hpp"
#include "human.hpp"
#include "size_hint.hpp"

namespace rollring {
namespace {

// Groups to which this producer has sent recently; a forgotten one is admitted again.
constexpr std::size_t recent_groups = 4096;
constexpr std::uint64_t lines_most = std::uint64_t{1} << 30;  // of a claim: no difference wraps
constexpr int claim_tries = 4;

// Saturates: no sum of bytes, or of overwritten words, exceeds its type.
std::uint64_t times(std::uint64_t count, std::uint64_t bytes) {
    constexpr std::uint64_t most = std::uint64_t{1} << 60;
    std::uint64_t product = 0;
    return __builtin_mul_overflow(count, bytes, &product) ? most : std::min(product, most);
}

}  // namespace

void Admission::remember(const GroupKey& key) {
    if (recent_.empty()) recent_.resize(recent_groups);
    recent_[key.low % recent_.size()] = key;
}

bool Admission::is_open(const GroupKey& key) {
    // No stash has opened the ring yet: no group is open, and the table of keys has no memory.
    if (peek(control_->group_size) == 0) return false;
    const Geometry& geometry = map_->geometry();
    if (!keys_) {
        auto mapped = map_->segment().map(geometry.keys_offset(),
                                          geometry.key_count() * sizeof(std::uint64_t), false);
        if (!mapped) return false;  // then it is admitted as a new one
        keys_.emplace(std::move(*mapped));
    }
    return KeyTable(&keys_->at<std::atomic<std::uint64_t>>(0), geometry.key_count()).holds(key);
}

std::uint64_t Admission::announced_groups() const {
    std::uint64_t groups = 0;
    const std::uint64_t most = peek(control_->max_open_groups);
    for (std::uint32_t lane = 0; lane < map_->geometry().lane_count; lane++) {
        const std::uint64_t announced = rollring::announced_groups(*map_, lane, most);
        if (announced != 0 && counts(lane)) groups += announced;
    }
    return groups;
}

// Called for a lane with announced groups or claims: its producer took the lane before it claimed
// anything. An idle lane owes nothing, regardless of its words.
bool Admission::counts(std::uint32_t lane) const {
    return peek(map_->entry(lane).quarantine) == 0 && !map_->lane_is_idle(lane);
}

// The most room that one group alone could have, within the limits of such a ring.
std::uint64_t Admission::room_most() const {
    const Geometry& geometry = map_->geometry();
    const std::uint64_t lanes = geometry.lane_count * geometry.lane_bytes;
    return std::clamp(peek(control_->room_most), lanes + geometry.spill_bytes / 2,
                      lanes + geometry.capacity(geometry.spill_lane()));
}

std::uint64_t Admission::claimed_bytes() const {
    std::uint64_t bytes = 0;
    const std::uint64_t most = room_most();
    for (std::uint32_t lane = 0; lane < map_->geometry().lane_count; lane++) {
        const std::uint32_t arrived = observe(map_->entry(lane).lines_arrived);
        const std::uint32_t lines = map_->owner(lane).lines_claimed.load() - arrived;
        if (lines == 0 || !claim_is_sound(lines * line_bytes, most) || !counts(lane)) continue;
        bytes += lines * line_bytes;
    }
    return bytes;
}

std::uint64_t Admission::members_of(const GroupNeed& need) const {
    const std::uint32_t size = need.members != 0 ? need.members : peek(control_->group_size);
    return std::uint64_t{std::max(1U, size)} + peek(control_->group_extra);
}

// Assumes the longest recent record, unless that is more than the room: an estimate alone makes no
// group impossible.
std::uint64_t Admission::claim_bytes(const GroupNeed& need) const {
    const std::uint64_t members = members_of(need);
    const std::uint64_t known = times(members, need.record_bytes);
    const std::uint64_t learned = times(members, peek(control_->record_lines) * line_bytes);
    return std::max(known, std::min(learned, peek(control_->room_bytes)));
}

// Whether the claims fit together with `wanted_lines` more of ours; or there are none but ours.
bool Admission::fits(std::uint64_t wanted_lines, std::uint64_t claimed_bytes) const {
    const std::uint64_t total = claimed_bytes + control_->owed_bytes.load();
    return total <= peek(control_->room_bytes) ||
           total <= (spare_lines_ + wanted_lines) * line_bytes;
}

// Stores the claim first and counts afterwards, in one order for all processes. True if it stands.
bool Admission::claim(std::uint64_t lines, std::uint64_t wanted_lines, LaneOwner& owner) {
    const auto adds = static_cast<std::uint32_t>(wanted_lines);
    const std::uint32_t before = claimed_lines_;
    claimed_lines_ += adds;
    owner.lines_claimed.store(claimed_lines_);
    if (fits(wanted_lines, claimed_bytes())) {
        spare_lines_ += wanted_lines - lines;
        return true;
    }
    claimed_lines_ = before;
    owner.lines_claimed.store(before);
    return false;
}

// If the bounds are far larger than the number of lanes, several places are taken at once.
Admission::Answer Admission::take_place(std::uint32_t lines, LaneOwner& owner) {
    if (places_ > 0 && spare_lines_ >= lines) {
        places_--;
        spare_lines_ -= lines;
        return Answer::go;
    }
    // One word answers most waiting producers, without a look at all lanes.
    const std::uint64_t bytes = lines * line_bytes;
    const std::uint64_t owed = control_->owed_bytes.load();
    if (lines != 0 && owed != 0 && owed + bytes > peek(control_->room_bytes)) {
        return Answer::no_room;
    }
    const std::uint64_t lanes = map_->geometry().lane_count;
    const std::uint64_t most = peek(control_->max_open_groups);
    // In this order: the consumer counts a group as open before it counts it as arrived.
    const std::uint64_t announced = announced_groups();
    const std::uint64_t taken = announced + control_->open_groups.load();
    if (places_are_taken(taken, most, lanes)) return Answer::too_many_groups;
    std::uint64_t at_once = places_at_once(most, lanes);
    if (lines == 0) {
        places_ = at_once;
        return Answer::go;
    }
    const std::uint64_t room = peek(control_->room_bytes);
    if (room / 64 / lanes < at_once * bytes || at_once * lines > lines_most) at_once = 0;
    const std::uint64_t ahead = at_once * lines;
    if (ahead != 0 && claim(lines, lines + ahead, owner)) {
        places_ = at_once;
        return Answer::go;
    }
    keep(owner.lines_claimed, claimed_lines_);  // an overwritten word would count
    const std::uint64_t missing = lines - std::min<std::uint64_t>(lines, spare_lines_);
    for (int tried = 0; tried < claim_tries; tried++) {
        // A claim that will not stand blocks others while it is stored.
        if (!fits(missing, claimed_bytes() + missing * line_bytes)) break;
        if (claim(lines, missing, owner)) return Answer::go;
        // Two producers that claim at once may both give way, so each retries after a time of its
        // own.
        const std::uint32_t pauses = 16U << tried;
        for (std::uint32_t i = 0; i < pauses * (1 + owner.pid.load() % 7); i++) spin_pause();
    }
    return Answer::no_room;
}

Admission::Answer Admission::ask(const GroupKey& key, const GroupNeed& need, LaneOwner& owner) {
    if (!active() || remembers(key)) return Answer::go;
    if (is_open(key) || holds(key)) {
        remember(key);
        return Answer::go;
    }
    const std::uint64_t bytes_max = peek(control_->max_open_bytes);
    if (bytes_max != 0 && control_->held_bytes.load() >= bytes_max) return Answer::too_many_bytes;
    if (peek(control_->room_bytes) != 0 &&
        times(members_of(need), need.record_bytes) > room_most()) {
        return Answer::never_fits;
    }
    const std::uint32_t lines = lines_of(need);
    const Answer answer = take_place(lines, owner);
    if (answer != Answer::go) return answer;
    announce(key, lines, owner);
    remember(key);
    return answer;
}

// The lines of a claim; 0 if bytes are not bounded.
std::uint32_t Admission::lines_of(const GroupNeed& need) const {
    if (peek(control_->room_bytes) == 0) return 0;
    return static_cast<std::uint32_t>(std::min(lines_most, claim_bytes(need) / line_bytes));
}

void Admission::announce(const GroupKey& key, std::uint32_t lines, LaneOwner& owner) {
    announced_.push_back({key, lines});
    poke(owner.groups_opened, ++opened_groups_);
}

void Admission::inherit(const GroupKey& key, const GroupNeed& need, LaneOwner& owner) {
    if (holds(key)) return;
    const std::uint32_t lines = lines_of(need);
    owner.lines_claimed.store(claimed_lines_ += lines);
    announce(key, lines, owner);
    remember(key);
}

// No producer waits, and less than half is taken of the places, and of the room that the spill may
// still grow to.
bool Admission::has_plenty(std::uint32_t lines) const {
    if (!active() || map_->consumer_bell().openers.load() != 0) return false;
    if (announced_groups() + control_->open_groups.load() >= peek(control_->max_open_groups) / 2) {
        return false;
    }
    const std::uint64_t room = peek(control_->room_bytes);
    const Geometry& geometry = map_->geometry();
    const std::uint64_t most = std::max(room, geometry.spill_bytes / 4 * 3);
    const std::uint64_t taken = claimed_bytes() + control_->owed_bytes.load();
    return room == 0 || taken + lines * line_bytes < most / 2;
}

// The present room has enough left for one more group. The stash keeps room for two groups ahead of
// need, so that it makes more room before it is short.
bool Admission::leaves_room(std::uint32_t lines) const {
    const std::uint64_t room = peek(control_->room_bytes);
    const std::uint64_t taken = claimed_bytes() + control_->owed_bytes.load();
    return room == 0 || taken + lines * line_bytes + claim_bytes({}) <= room;
}

bool Admission::take_spare(const GroupKey& key, const GroupNeed& need, LaneOwner& owner) {
    const std::uint32_t lines = lines_of(need);
    if (!has_plenty(lines) || !leaves_room(lines)) return false;
    if (take_place(lines, owner) != Answer::go) return false;
    announce(key, lines, owner);
    return true;
}

bool Admission::pass(const GroupKey& from, const GroupKey& to) {
    if (!active() || knows(to)) return false;
    const auto found = std::ranges::find(announced_, from, &Announced::key);
    if (found == announced_.end()) return false;
    found->key = to;
    remember(to);
    return true;
}

bool Admission::holds(const GroupKey& key) const {
    return std::ranges::find(announced_, key, &Announced::key) != announced_.end();
}

Admission::Sent Admission::note_sent(const GroupKey& key) {
    if (!announced_.empty()) {
        const auto found = std::ranges::find(announced_, key, &Announced::key);
        if (found != announced_.end()) {
            sent_lines_ += found->lines;
            *found = announced_.back();
            announced_.pop_back();
            sent_groups_++;
        }
    }
    return {static_cast<std::uint32_t>(sent_groups_), sent_lines_};
}

bool Admission::cancel(const GroupKey& key, LaneOwner& owner) {
    const auto found = std::ranges::find(announced_, key, &Announced::key);
    if (found == announced_.end()) return false;
    const std::uint32_t lines = found->lines;
    *found = announced_.back();
    announced_.pop_back();
    if (remembers(key)) recent_[key.low % recent_.size()] = GroupKey{};
    // As for a claim that did not stand: note_sent() does not count it.
    owner.lines_claimed.store(claimed_lines_ -= lines);
    poke(owner.groups_opened, --opened_groups_);
    return true;
}

// Names the ring in which the group would fit: half of the spill counts, and lanes come in that
// size.
std::string Admission::why_never(const GroupNeed& need) const {
    using detail::option_bytes;
    const Geometry& geometry = map_->geometry();
    const std::uint64_t members = members_of(need);
    const std::uint64_t needed = times(members, need.record_bytes);
    const std::string why = fmt::format(
        "a group of {} records of {} needs {}, but this ring has at most {} for one group: ",
        members, human_bytes(need.record_bytes), human_bytes(needed), human_bytes(room_most()));
    if (needed > geometry.lane_count * geometry.lane_bytes + lane_bytes_max / 2) {
        return why +
               fmt::format("even the maximum --spill-bytes, {}, is too small: send smaller groups",
                           option_bytes(lane_bytes_max));
    }
    return why +
           fmt::format(
               "create it with --spill-bytes {} or more, or with --overflow; {} prints the "
               "sizes for a run of such groups",
               option_bytes(std::min(2 * needed, lane_bytes_max)),
               detail::size_hint({geometry.lane_count, members, need.tokens, need.record_bytes}));
}

std::string Admission::why(Answer answer, const GroupNeed& need) const {
    const std::string trainer =
        map_->consumer_alive() ? "the trainer is alive" : "no trainer is attached";
    switch (answer) {
        case Answer::go:
            return {};
        case Answer::too_many_bytes:
            return fmt::format(
                "no new group can open: {} of records are held, the limit is {}; {}; 'rollring "
                "groups' lists the open groups",
                human_bytes(control_->held_bytes.load()),
                human_bytes(peek(control_->max_open_bytes)), trainer);
        case Answer::no_room:
            return fmt::format(
                "no new group can open: it may need {}, and {} of the room for groups ({} in "
                "all) are reserved; {}; 'rollring groups' lists the waiting groups; a ring with "
                "more --spill-bytes (or --overflow) has more room",
                human_bytes(claim_bytes(need)),
                human_bytes(claimed_bytes() + control_->owed_bytes.load()),
                human_bytes(peek(control_->room_bytes)), trainer);
        case Answer::never_fits:
            return why_never(need);
        case Answer::too_many_groups:
            break;
    }
    return fmt::format(
        "no new group can open: {} are open and {} announced, the limit is {}; {}; 'rollring "
        "groups' lists the open groups",
        control_->open_groups.load(), announced_groups(), peek(control_->max_open_groups), trainer);
}

}  // namespace rollring
