#pragma once
// The state of a ledger, as its entries make it: which records are kept, where they lie, and which
// of them were acknowledged. The writer and the reader of a ledger both apply each entry to a Book,
// so that both know the same.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rollring/trajectory.hpp"

namespace rollring::ledger {

struct Identity {
    std::uint64_t ring_id;
    std::uint32_t lane;
    std::uint32_t epoch;
    std::uint64_t sequence;
    friend bool operator==(const Identity&, const Identity&) = default;
};

struct HashIdentity {
    std::size_t operator()(const Identity& one) const {
        std::uint64_t mixed = one.sequence * 0x9e3779b97f4a7c15;
        mixed ^= (std::uint64_t{one.lane} << 32 | one.epoch) * 0xff51afd7ed558ccd;
        mixed ^= one.ring_id;
        return mixed ^ (mixed >> 29);
    }
};

// A record that may have to be given again.
struct Kept {
    Identity origin;
    GroupKey key;
    std::uint64_t tokens;
    std::uint64_t segment;  // of its newest copy
    std::uint64_t offset;   // of its entry
    std::uint64_t bytes;    // of the entry, header and padding included
    // Its place in the batch that was acknowledged last; batch 0: in none.
    std::uint64_t batch = 0;
    std::uint32_t place = 0;
    bool acked = false;  // in this ring; otherwise it is to be given again
    std::int64_t step = -1;
};

class Book {
  public:
    // That many more records come.
    void expect(std::uint64_t records);
    // A record, or another copy of one.
    void keep(std::uint64_t number, const Kept& record);
    void ack(std::uint64_t batch, std::int64_t step, std::span<const std::uint64_t> numbers);
    // Returns how many of them were kept.
    std::uint64_t forget(std::span<const std::uint64_t> numbers);
    void give_again(std::span<const std::uint64_t> numbers);
    // The entries that follow are of this ring: if it is another one than before, nothing that was
    // acknowledged counts as such.
    void enter_ring(std::uint64_t ring_id);
    // No other record gets this number.
    void use(std::uint64_t number) { next_number_ = std::max(next_number_, number + 1); }
    // The record with this number is the one of that identity, too.
    void name(const Identity& identity, std::uint64_t number) {
        names_[identity] = number;
        use(number);
    }

    // The number of the record with this identity, which may be gone; none: it is not known.
    [[nodiscard]] std::optional<std::uint64_t> find(const Identity& identity) const;
    [[nodiscard]] const Kept* record(std::uint64_t number) const;
    [[nodiscard]] const std::unordered_map<std::uint64_t, Kept>& records() const {
        return records_;
    }
    // Acknowledged with steps up to this one.
    [[nodiscard]] std::vector<std::uint64_t> through(std::int64_t step) const;
    // All, group by group: those that were in a batch in the order of their batches, then the
    // others by their first record.
    [[nodiscard]] std::vector<std::uint64_t> in_order() const;

    // Kept records in that segment, and their bytes.
    struct Load {
        std::uint64_t records = 0;
        std::uint64_t bytes = 0;
    };
    [[nodiscard]] Load load(std::uint64_t segment) const;
    [[nodiscard]] std::vector<std::uint64_t> in_segment(std::uint64_t segment) const;

    [[nodiscard]] std::uint64_t next_number() const { return next_number_; }
    [[nodiscard]] std::uint64_t next_batch() const { return next_batch_; }
    // The last step that a checkpoint has; -1: none.
    [[nodiscard]] std::int64_t settled_step() const { return settled_step_; }
    void settle_step(std::int64_t step) { settled_step_ = std::max(settled_step_, step); }
    // As files told that may be gone: numbers and steps go on behind them.
    void go_on(std::uint64_t next_number, std::uint64_t next_batch, std::int64_t settled_step);
    [[nodiscard]] std::uint64_t ring_id() const { return ring_id_; }
    [[nodiscard]] std::uint64_t acked() const { return by_step_.size(); }

  private:
    void unload(const Kept& record);
    void give_again(std::uint64_t number, Kept& record);
    std::unordered_map<std::uint64_t, Kept> records_;
    std::unordered_map<Identity, std::uint64_t, HashIdentity> names_;
    std::map<std::uint64_t, Load> loads_;
    std::set<std::pair<std::int64_t, std::uint64_t>> by_step_;  // acknowledged ones
    std::uint64_t next_number_ = 1;
    std::uint64_t next_batch_ = 1;
    std::int64_t settled_step_ = -1;
    std::uint64_t ring_id_ = 0;
};

}  // namespace rollring::ledger
