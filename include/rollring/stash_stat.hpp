#pragma once
// A look at a ring's stash from another process, as stat_ring() is one at its lanes: attaches
// read-only, takes no part, and shows what was last when the trainer is gone.

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
    bool account_whole;               // false: its writer died, or wrote all the time
    std::vector<GroupStat> groups;    // oldest first
    std::uint64_t rows_unread;        // groups left out for the same reasons
    LatestBatch latest_batch;         // of the stash that is open, or was the last one
};

// Never waits for the trainer, whatever it is doing.
ROLLRING_API Result<StashStat> stat_stash(std::string_view ring);

enum class Trouble : std::uint8_t {
    none,
    producer_died,  // a group waits, and a producer that has sent to it died
    no_progress,    // the trainer has all that was sent, can make no batch of it, and nothing comes
};
ROLLRING_API std::string_view name(Trouble trouble);

// A condition for which a run waits in vain, so that it can be ended, or repaired.
struct RunTrouble {
    Trouble trouble;
    std::string instance_id;  // of the group that waits; the oldest. Empty: no group does
    std::string producer;     // that died, or sent last; empty: there was none
    std::uint32_t lane;
    std::uint32_t pid;    // of the producer, in its own PID namespace: for people
    std::int64_t for_ns;  // since the group changed, or since a record came
    std::string text;     // all of it in one sentence; empty: no trouble
};

// The caller's knowledge of the trainer.
enum class TrainerDoes : std::uint8_t {
    anything,  // with a group that is complete or leased it may be at work
    waits,     // it has asked for a batch for `stale_after` and has got none, whatever it holds
};

// Looks for a condition that has lasted for `stale_after`. From outside, as stat_stash(): a trainer
// that has given a batch back a moment ago may find its producers only just going on.
ROLLRING_API Result<RunTrouble> find_trouble(std::string_view ring,
                                             std::chrono::nanoseconds stale_after,
                                             TrainerDoes trainer = TrainerDoes::anything);

}  // namespace rollring
