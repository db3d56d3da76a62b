// The reason why a run waits in vain, from the statistics of its ring and its stash.

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "human.hpp"
#include "rollring/ring.hpp"
#include "rollring/stat.hpp"
#include "rollring/time.hpp"

namespace rollring {
namespace {

double seconds(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-9;
}

void blame(RunTrouble& found, const LaneStat& lane) {
    found.producer = lane.producer;
    found.lane = lane.lane;
    found.pid = lane.pid;
}

const LaneStat* dead_sender(const RingStat& ring, const GroupStat& group) {
    for (const LaneStat& lane : ring.lanes) {
        if (lane.died && std::ranges::find(group.lanes, lane.lane) != group.lanes.end()) {
            return &lane;
        }
    }
    return nullptr;
}

// The oldest group that has waited this long and has a dead sender.
bool producer_died(const RingStat& ring, const StashStat& stash, std::int64_t stale_ns,
                   RunTrouble& found) {
    for (const GroupStat& group : stash.groups) {
        if (group.state != GroupState::open || group.unchanged_ns < stale_ns) continue;
        const LaneStat* const dead = dead_sender(ring, group);
        if (dead == nullptr) continue;
        found.trouble = Trouble::producer_died;
        found.instance_id = group.instance_id;
        found.for_ns = group.unchanged_ns;
        blame(found, *dead);
        found.text = fmt::format(
            "producer {} (pid {}, lane {}) of ring {} died, and one of its groups has been "
            "incomplete for {:.1f} s: {}; send the missing members, or set a deadline for groups",
            dead->producer, dead->pid, dead->lane, ring.name, seconds(group.unchanged_ns),
            group.to_string());
        return true;
    }
    return false;
}

bool no_progress(const RingStat& ring, const StashStat& stash, std::int64_t stale_ns,
                 TrainerDoes trainer, RunTrouble& found) {
    const auto waits = [](const GroupStat& group) { return group.state == GroupState::open; };
    const auto waiting = std::ranges::count_if(stash.groups, waits);
    const auto others = std::ssize(stash.groups) - waiting;
    if (trainer == TrainerDoes::anything && others != 0) return false;  // it can continue
    const LaneStat* latest = nullptr;
    for (const LaneStat& lane : ring.lanes) {
        if (lane.depth_records != 0) return false;
        if (lane.newest_age_ns < 0) continue;
        if (latest == nullptr || lane.newest_age_ns < latest->newest_age_ns) latest = &lane;
    }
    found.for_ns = latest != nullptr ? latest->newest_age_ns : realtime_ns() - ring.created_ns;
    if (found.for_ns < stale_ns) return false;
    found.trouble = Trouble::no_progress;
    found.text = fmt::format("no record has arrived in ring {} for {:.1f} s", ring.name,
                             seconds(found.for_ns));
    if (latest == nullptr) {
        found.text += ", and none before";
    } else {
        blame(found, *latest);
        found.text += fmt::format("; the last one came from producer {} (pid {}, lane {}), {}",
                                  latest->producer, latest->pid, latest->lane,
                                  latest->alive  ? "which is alive"
                                  : latest->died ? "which died"
                                                 : "which closed");
    }
    const auto alive = std::ranges::count_if(ring.lanes, &LaneStat::alive);
    found.text += fmt::format("; {} alive, {} waiting", counted(alive, "producer"),
                              counted(waiting, "group"));
    if (const auto oldest = std::ranges::find_if(stash.groups, waits);
        oldest != stash.groups.end()) {
        found.instance_id = oldest->instance_id;
        found.text += ", the oldest is " + oldest->to_string();
    }
    if (others != 0) found.text += fmt::format("; {} more complete or leased", others);
    return true;
}

}  // namespace

std::string_view name(Trouble trouble) {
    switch (trouble) {
        case Trouble::none:
            return "none";
        case Trouble::producer_died:
            return "producer_died";
        case Trouble::no_progress:
            return "no_progress";
    }
    return "unknown";
}

Result<RunTrouble> find_trouble(std::string_view ring, std::chrono::nanoseconds stale_after,
                                TrainerDoes trainer) {
    if (stale_after.count() <= 0) {
        return refused(Errc::invalid_argument, "the stale time must be positive");
    }
    // The stash first: later records can only make a run look better.
    const auto stash = stat_stash(ring);
    if (!stash) return std::unexpected(stash.error());
    const auto lanes = stat_ring(ring);
    if (!lanes) return std::unexpected(lanes.error());
    RunTrouble found{};
    if (producer_died(*lanes, *stash, stale_after.count(), found)) return found;
    no_progress(*lanes, *stash, stale_after.count(), trainer, found);
    if (found.trouble == Trouble::none) found = RunTrouble{};
    return found;
}

}  // namespace rollring
