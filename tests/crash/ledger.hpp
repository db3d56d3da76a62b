#pragma once
// The notes of senders and consumers about each record, in memory that survives them.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace rollring::test {

constexpr std::uint32_t senders = 3;
constexpr std::uint64_t records_max = std::uint64_t{1} << 24;  // per sender
constexpr std::size_t set_max = 8;

enum State : std::uint8_t { unseen, delivered, releasing, released };

struct Counts {
    std::atomic<std::uint64_t> records;
    std::atomic<std::uint64_t> redelivered;
    std::atomic<std::uint64_t> releases;
    std::atomic<std::uint64_t> acks;
    // the state in which successors found a release that was cut short
    std::atomic<std::uint64_t> cut_done;
    std::atomic<std::uint64_t> cut_undone;
    std::atomic<std::uint64_t> cut_ack_done;
    std::atomic<std::uint64_t> cut_ack_undone;
};

struct Paper {
    std::atomic<std::uint32_t> senders_stop;
    std::atomic<std::uint64_t> records_each;  // a sender ends after this many; 0: when told to stop
    std::atomic<std::uint32_t> senders_ended;
    std::atomic<std::uint64_t> pushed[senders];
    std::atomic<std::uint64_t> base[senders];  // everything below is released
    // the set that release_all() is at work on; 0: none
    std::atomic<std::uint64_t> set_count;
    std::atomic<std::int64_t> set_step;
    std::atomic<std::uint64_t> set[set_max];  // sender << 32 | number
    std::atomic<std::int64_t> step_done;      // of the last release_all() that returned
    Counts counts;
    std::atomic<std::uint8_t> states[senders][records_max];
};

// --sender FD RING INDEX
int sender_role(const std::vector<std::string>& arguments);
// --consumer FD RING SEED PIPE
int consumer_role(const std::vector<std::string>& arguments);

}  // namespace rollring::test
