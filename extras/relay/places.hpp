#pragma once
// Places that a receiver has taken for groups of workers on another node, in memory that outlives
// the process: its successor takes them again. A worker that was answered may send its records.
//
// A place is written down before its worker is answered. That a record of the group was sent is
// written down before the record is visible, with where it lies: so the successor, which learns
// where the lane ends, knows which places are still to be had.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "rollring/producer.hpp"

namespace rollring::relay {

class Places {
  public:
    static constexpr std::uint32_t most = 4096;

    struct Slot {
        std::atomic<std::uint64_t> taken;
        std::uint64_t key_low;
        std::uint64_t key_high;
        std::uint64_t record_bytes;
        std::uint64_t worker;
        std::uint64_t group_size;
        std::atomic<std::uint64_t> sent_to;  // 0: nothing was sent; else behind where it lies
    };
    using Slots = std::array<Slot, most>;
    struct Place {
        GroupKey key;
        GroupPlan plan;
        std::uint64_t worker;
    };
    // Whose places are for whoever comes first.
    static constexpr std::uint64_t nobody = ~std::uint64_t{0};

    explicit Places(Slots& slots) : slots_(&slots) {}

    // First: what was sent below `end` of the lane has its place from the stash by now. The others.
    std::vector<Place> recover(std::uint64_t end);
    [[nodiscard]] bool is_full() const { return free_.empty(); }
    [[nodiscard]] bool has(const GroupKey& key) const { return found_.contains(key); }
    // Not while it is full.
    void add(const Place& place);
    // It is this group's from now on, and this worker's.
    void pass(const GroupKey& from, const GroupKey& to, std::uint64_t worker);
    // A record of the group lies at `to`, and will be visible.
    void note_sent(const GroupKey& key, std::uint64_t to);
    // All that was noted is visible.
    void settle();
    void remove(const GroupKey& key);
    [[nodiscard]] std::vector<GroupKey> of(std::uint64_t worker) const;
    // That have places, but for nobody.
    [[nodiscard]] std::vector<std::uint64_t> workers() const;

  private:
    struct Hash {
        std::size_t operator()(const GroupKey& key) const { return key.low; }
    };
    void let_go(std::uint32_t slot);

    Slots* slots_;
    std::unordered_map<GroupKey, std::uint32_t, Hash> found_;  // of which nothing was sent
    std::vector<std::uint32_t> sent_;                          // slots of which something was
    std::vector<std::uint32_t> free_;
};

}  // namespace rollring::relay
