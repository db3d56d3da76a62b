#pragma once
// Statistics of a ring's stash for any process, as stat_ring() has those of its lanes. Attaches
// read-only; after the trainer's death it shows the last state.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/stash.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

// The batch that was leased last.
struct LatestBatch {
    std::uint64_t sequences = 0;  // 0: none yet
    std::uint64_t tokens = 0;
    std::uint64_t rewarded = 0;  // members with a reward
    double mean_reward = 0;      // of those
};

struct StashStat {
    std::string ring;
    bool used;  // a stash was opened on this ring once; if not, all below is empty
    bool open;  // one is open now
    std::uint64_t open_groups;
    std::uint64_t max_open_groups;
    std::uint64_t max_open_bytes;     // 0: no limit
    std::uint64_t held_bytes;         // of records not yet acknowledged
    std::uint64_t copied_bytes;       // to the spill, over the ring's life
    std::uint64_t evacuated_records;  // likewise
    StashAccount account;             // since this stash, or the last one, was opened
    bool account_whole;               // false: its writer died in an update, or wrote all the time
    std::vector<GroupStat> groups;    // oldest first
    std::uint64_t rows_unread;        // groups left out for the same reasons
    LatestBatch latest_batch;         // of the open stash, else of the last one
};

// Never waits for the trainer, whatever it is doing.
ROLLRING_API Result<StashStat> stat_stash(std::string_view ring);

enum class Trouble : std::uint8_t {
    none,
    producer_died,  // a group waits, and a producer that has sent to it died
    no_progress,    // the trainer has read every record, cannot form a batch, and no record arrives
};
ROLLRING_API std::string_view name(Trouble trouble);

// The cause of a stall.
struct RunTrouble {
    Trouble trouble;
    std::string instance_id;  // of the oldest waiting group; empty if there is none
    std::string producer;     // that died, or sent last; empty: there was none
    std::uint32_t lane;
    std::uint32_t pid;    // of the producer, in its own PID namespace: for people
    std::int64_t for_ns;  // since the group changed, or since a record came
    std::string text;     // all of it in one sentence; empty: no trouble
};

// The caller's knowledge of the trainer.
enum class TrainerDoes : std::uint8_t {
    anything,  // with a group that is complete or leased it may be at work
    waits,     // it has waited for a batch for `stale_after`, whatever batches it holds
};

// Reports a stall of at least `stale_after`. It looks from outside, as stat_stash(): right after an
// ack, producers may have only just resumed.
ROLLRING_API Result<RunTrouble> find_trouble(std::string_view ring,
                                             std::chrono::nanoseconds stale_after,
                                             TrainerDoes trainer = TrainerDoes::anything);

}  // namespace rollring
