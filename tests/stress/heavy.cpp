// Heavy load by turns, and the look whether anything moves: only trainers die then, at the
// beginning. The leftovers of producers hold memory until they are due, so that nothing need move.

#include <cstring>

#include "driver.hpp"
#include "rollring/ring.hpp"
#include "rollring/stat.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t first_turn_ns = 4000 * ms;  // no process has died yet
constexpr std::int64_t turn_ns = 5500 * ms;
constexpr std::int64_t between_ns = 12'000 * ms;
constexpr std::int64_t restarts_ns = 600 * ms;  // of trainers, from the beginning of a turn
// Afterwards, until a stash has forgotten how long records were: a dead producer would be taken to
// hold as much, until its groups are due.
constexpr std::uint64_t light_records = 4000;

}  // namespace

void Driver::take_turns() {
    const std::int64_t now = monotonic_ns();
    if (now < turn_ends_ns_) return;
    const bool first = turn_ends_ns_ == 0;
    heavy(!is_heavy());
    light_from_ = oracle_.counts().pushed + light_records;
    calm_from_ns_ = now + restarts_ns;
    turn_ends_ns_ = now + (first ? first_turn_ns : is_heavy() ? turn_ns : between_ns);
}

// A hostile producer may claim all there is. It is away meanwhile.
void Driver::heavy(bool on) {
    board_->heavy = on ? 1 : 0;
    counts_.heavy_turns += on ? 1 : 0;
    for (Process& process : processes_) {
        if (on && process.role == Role::hostile && process.runs()) strike(process);
    }
}

bool Driver::is_heavy() const {
    return board_->heavy != 0;
}

bool Driver::spares_producers() const {
    return !ending_ && (is_heavy() || oracle_.counts().pushed < light_from_);
}

// Both ends of the weight channel are not a part of it.
bool Driver::lives_on(Role role) const {
    return spares_producers() && role != Role::publisher && role != Role::subscriber;
}

bool Driver::spared(Role role) {
    if (!lives_on(role)) return false;
    if (role != Role::trainer || monotonic_ns() >= calm_from_ns_) return true;
    return dice_.below(8) != 0;
}

// Before there is a stash, groups are opened without permission, so that nothing is promised of
// those.
bool Driver::stays_away(Role role) const {
    return (role == Role::hostile && spares_producers()) ||
           (role == Role::producer && !stash_was_there_);
}

void Driver::note_progress(const Process& process, const std::byte* entry) {
    Word word{};
    std::memcpy(&word.head, entry, sizeof word.head);
    stash_was_there_ |= word.head.kind == Kind::resumed;
    if (process.role == Role::trainer) return progress_.trainer_said(word.head);
    if (process.role != Role::producer || word.head.kind == Kind::failure) return;
    std::memcpy(&word, entry, sizeof word);
    progress_.producer_said(word);
}

void Driver::note_end(const Process& process) {
    if (process.role == Role::trainer) return progress_.disturb();
    if (process.role != Role::producer && process.role != Role::hostile) return;
    progress_.forget(process.life);
    progress_.producer_died();
}

void Driver::note_stop(const Process& process) {
    if (process.role == Role::trainer) return progress_.disturb();
    if (process.role == Role::producer) progress_.disturb(process.life);
}

// `until_ns`: when all had been read that was said by then.
void Driver::look_at_progress(std::int64_t until_ns) {
    std::string why = progress_.stalled(until_ns);
    if (why.empty()) return;
    if (const auto stat = stat_ring(ring_->name())) {
        for (const LaneStat& lane : stat->lanes) {
            if (lane.depth_bytes == 0) continue;
            why +=
                fmt::format("; lane {} ({}, {}): {} bytes, {} records unread", lane.lane,
                            lane.producer, name(lane.state), lane.depth_bytes, lane.depth_records);
        }
    }
    if (const auto stat = stat_stash(ring_->name())) {
        why += fmt::format("; the stash holds {} bytes", stat->held_bytes);
        for (const GroupStat& group : stat->groups) {
            why += fmt::format("; {} {}: {} of {}, {} records for {} ms", group.instance_id,
                               name(group.state), group.complete, group.size, group.records,
                               group.age_ns / ms);
        }
    }
    throw Failure(why);
}

}  // namespace rollring::test
