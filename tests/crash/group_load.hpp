#pragma once
// Groups whose whole content follows from one number, the processes that send them interleaved,
// with stragglers, and the trainer that records its acknowledgements in memory that survives it.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "rollring/stash.hpp"
#include "support/load.hpp"

namespace rollring::test {

constexpr std::uint32_t rollouts = 2;  // processes; each has two lanes
constexpr std::uint32_t guest = rollouts;
constexpr std::uint64_t groups_max = std::uint64_t{1} << 22;  // of each
constexpr std::uint32_t groups_at_once = 4;                   // in a batch

// The content of a group, by its number: its sender and its place among the sender's groups.
struct GroupPlan {
    std::uint64_t id;

    static std::uint64_t id_of(std::uint64_t who, std::uint64_t number) {
        return who << 32 | number;
    }
    [[nodiscard]] std::uint64_t who() const { return id >> 32; }
    [[nodiscard]] std::uint64_t number() const { return id & 0xffffffff; }
    [[nodiscard]] std::uint32_t size() const { return 2 + static_cast<std::uint32_t>(roll(1) % 3); }
    // Its last member fails, and the policy voids it: none of it is ever shipped.
    [[nodiscard]] bool is_void() const { return who() != guest && roll(2) % 16 == 0; }
    // How many groups later a member is sent. One in six groups stays open for long, one in forty
    // for very long.
    [[nodiscard]] std::uint64_t delay(std::uint32_t repetition) const {
        const std::uint64_t near = roll(16 + repetition) % 6;
        if (repetition + 1 != size()) return near;
        if (roll(3) % 40 == 0) return 300 + roll(4) % 300;
        return roll(3) % 6 == 0 ? 40 + roll(4) % 80 : near;
    }
    // Some members are sent twice; the second may come when the group is long over. 0: none.
    [[nodiscard]] std::uint64_t echo() const { return roll(5) % 8 == 0 ? 1 + roll(6) % 60 : 0; }
    [[nodiscard]] std::uint32_t tokens(std::uint32_t repetition) const {
        return 8 + static_cast<std::uint32_t>(roll(32 + repetition) % 200);
    }
    [[nodiscard]] std::uint64_t roll(std::uint64_t what) const { return mix(mix(id) + what); }

    // Into `values`, which must live as long as the draft.
    [[nodiscard]] Draft member(std::uint32_t repetition, std::vector<std::int32_t>& values) const;
    // Exactly its members, each whole and once. `first` and `end`: its sequences in the batch.
    void verify(const Batch& batch, std::size_t group) const;
};

struct GroupPaper {
    std::atomic<std::uint64_t> end;  // no sender begins a group of this number
    std::atomic<std::uint32_t> senders;
    std::atomic<std::uint32_t> senders_ended;
    std::atomic<std::uint64_t> begun[rollouts + 1];
    // the groups that ack() is at work on; 0: none
    std::atomic<std::uint64_t> set_count;
    std::atomic<std::int64_t> set_step;
    std::atomic<std::uint64_t> set[groups_at_once];
    std::atomic<std::int64_t> step_done;  // of the last ack() that returned
    std::atomic<std::uint64_t> groups;    // acknowledged
    std::atomic<std::uint64_t> members;
    std::atomic<std::uint64_t> nacks;
    std::atomic<std::uint64_t> forsaken;  // batches destroyed without ack
    std::atomic<std::uint64_t> evacuated;
    std::atomic<std::uint64_t> copied_bytes;
    // the state in which successors found an ack() that was cut short
    std::atomic<std::uint64_t> cut_done;
    std::atomic<std::uint64_t> cut_undone;
    std::atomic<std::uint8_t> shipped[rollouts + 1][groups_max];
};

// Small lanes, so that stragglers are in the way all the time; a spill that takes several turns to
// read again.
RingOptions group_ring();
StashOptions group_options();

// Every group begun was shipped once, or voided; the ring and its spill hold nothing.
void check_all_shipped(const GroupPaper& paper, const std::string& ring);

// --rollouts FD RING INDEX
int rollouts_role(const std::vector<std::string>& arguments);
// --trainer FD RING SEED PIPE
int trainer_role(const std::vector<std::string>& arguments);

}  // namespace rollring::test
