#pragma once
// Places that a receiver has taken for groups of workers on another node, in memory that outlives
// the process: its successor takes them again. A worker that was answered may send its records.
//
// A place is logged before its worker is answered. The first record of the group is logged with its
// position before it is visible: so a successor, which knows where the lane ends, knows which
// places are still taken.

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
        std::atomic<std::uint64_t> sent_to;  // 0: nothing was sent; otherwise the end of the record
    };
    using Slots = std::array<Slot, most>;
    struct Place {
        GroupKey key;
        GroupPlan plan;
        std::uint64_t worker;
    };
    // The worker of places that any worker may get.
    static constexpr std::uint64_t nobody = ~std::uint64_t{0};

    explicit Places(Slots& slots) : slots_(&slots) {}

    // Call it first: groups with a record below `end` of the lane are counted by the stash now.
    // Returns the other places.
    std::vector<Place> recover(std::uint64_t end);
    [[nodiscard]] bool is_full() const { return free_.empty(); }
    [[nodiscard]] bool has(const GroupKey& key) const { return found_.contains(key); }
    // Requires that it is not full.
    void add(const Place& place);
    // The place belongs to this group and this worker from now on.
    void pass(const GroupKey& from, const GroupKey& to, std::uint64_t worker);
    // A record of the group is at `to`, and will be visible.
    void note_sent(const GroupKey& key, std::uint64_t to);
    // Every logged record is visible.
    void settle();
    void remove(const GroupKey& key);
    [[nodiscard]] std::vector<GroupKey> of(std::uint64_t worker) const;
    // The workers that have places.
    [[nodiscard]] std::vector<std::uint64_t> workers() const;

  private:
    struct Hash {
        std::size_t operator()(const GroupKey& key) const { return key.low; }
    };
    void let_go(std::uint32_t slot);

    Slots* slots_;
    std::unordered_map<GroupKey, std::uint32_t, Hash> found_;  // of groups without a sent record
    std::vector<std::uint32_t> sent_;                          // slots of groups with a sent record
    std::vector<std::uint32_t> free_;
};

}  // namespace rollring::relay
