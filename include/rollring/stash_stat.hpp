#pragma once
// A look at a ring's stash from another process, as stat_ring() is one at its lanes: attaches
// read-only, takes no part, and shows what was last when the trainer is gone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/stash_options.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

// One group that is not over.
struct GroupStat {
    GroupKey key;
    std::string instance_id;    // its first 40 bytes, printable
    std::string state;          // "open", "ready" (for a batch), "leased" (trained on)
    std::int64_t age_ns;        // since its first record
    std::int64_t unchanged_ns;  // since its last change
    std::uint32_t size;         // members asked for
    std::uint32_t live;         // members that are complete
    std::uint32_t failed;
    std::uint32_t records;               // held
    std::uint64_t tokens;                // held
    std::vector<std::uint32_t> missing;  // repetition ids below 64 that an open group waits for
    // Who has sent to it: "name (lane 3)". On a ring of more than 64 lanes: who may have.
    std::vector<std::string> producers;
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
};

// Never waits for the trainer, whatever it is doing.
Result<StashStat> stat_stash(std::string_view ring);

}  // namespace rollring
