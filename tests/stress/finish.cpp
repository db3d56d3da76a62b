// The end of a run, in good order, and its state meanwhile.

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "driver.hpp"
#include "rollring/ring.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {

void Driver::end_all(Role role) {
    wait_for(fmt::format("the end of every {}", name(role)), [&] {
        return std::ranges::all_of(processes_, [&](const Process& process) {
            return process.role != role || process.done;
        });
    });
}

void Driver::finish() {
    arming_ = false;
    heavy(false);
    light_from_ = 0;
    for (Process& process : processes_) {
        if (process.resume_ns != 0) resume(process);
    }
    // A successor must be able to take over. Armed processes may still fail, until the end.
    wait_for("everyone to speak once more", [&] {
        return std::ranges::all_of(
            processes_, [](const Process& process) { return process.runs() && process.words > 0; });
    });
    ending_ = true;
    for (Process& process : processes_) {
        if (process.role == Role::hostile && process.runs()) strike(process);
    }
    board_->producers_end = 1;
    end_all(Role::producer);
    board_->trainer_ends = 1;
    end_all(Role::trainer);
    board_->weights_end = 1;
    end_all(Role::publisher);
    end_all(Role::subscriber);
    drain();
    oracle_.finish();
    check_ring();
    remove_dead_channels(ring_->name());
    ring_.reset();
    counts_.leftovers = shm_leftovers();
    require(counts_.leftovers == 0, "{} objects are left in /dev/shm", counts_.leftovers);
}

void Driver::check_ring() {
    const auto stat = stat_ring(ring_->name());
    require(stat.has_value(), "{}", stat ? "" : stat.error().to_string());
    for (const LaneStat& lane : stat->lanes) {
        const bool spill = lane.lane >= stat->lane_count;
        if (oracle_.was_hostile(lane.lane) || (options_.hostile && spill)) continue;
        require(lane.lost == 0 && lane.duplicates == 0 && lane.torn == 0 && lane.depth_bytes == 0 &&
                    lane.dropped_bytes == 0,
                "lane {}: lost {} duplicates {} torn {} dropped bytes {} depth {}", lane.lane,
                lane.lost, lane.duplicates, lane.torn, lane.dropped_bytes, lane.depth_bytes);
    }
}

void Driver::show() {
    if (isatty(STDERR_FILENO) == 0 || monotonic_ns() - shown_ns_ < 1'000'000'000) return;
    shown_ns_ = monotonic_ns();
    const OracleCounts& counts = oracle_.counts();
    fmt::print(stderr,
               "\r{:4.0f} s of {:.0f}  {} kills  {} records pushed  {} groups checked  "
               "{} recoveries  {} versions\x1b[K",
               static_cast<double>(shown_ns_ - started_ns_) * 1e-9, options_.seconds,
               counts_.all_kills(), counts.pushed, counts.groups_checked, counts.recoveries,
               counts.versions);
    static_cast<void>(std::fflush(stderr));
}

}  // namespace rollring::test
