#pragma once
// Finds a group's slot by its key: open addressing with one cache miss a look-up, where a
// node-based map takes three. Erasure moves back (Knuth 6.4, algorithm R); grows by doubling, never
// shrinks.

#include <bit>
#include <cstdint>
#include <vector>

#include "rollring/trajectory.hpp"

namespace rollring {

class SlotIndex {
  public:
    static constexpr std::uint32_t none = ~std::uint32_t{0};

    SlotIndex() : entries_(64) {}

    [[nodiscard]] std::uint32_t find(const GroupKey& key) const {
        for (std::size_t at = home(key);; at = next(at)) {
            const Entry& entry = entries_[at];
            if (entry.slot == none) return none;
            if (entry.key == key) return entry.slot;
        }
    }
    void prefetch(const GroupKey& key) const { __builtin_prefetch(&entries_[home(key)]); }
    // The key is not in it.
    void insert(const GroupKey& key, std::uint32_t slot) {
        if (count_ * 2 >= entries_.size()) grow();
        place({key, slot});
        count_++;
    }
    void erase(const GroupKey& key) {
        std::size_t hole = home(key);
        while (entries_[hole].key != key || entries_[hole].slot == none) {
            if (entries_[hole].slot == none) return;
            hole = next(hole);
        }
        for (std::size_t at = next(hole); entries_[at].slot != none; at = next(at)) {
            const std::size_t wants = home(entries_[at].key);
            if (((at - wants) & mask()) < ((at - hole) & mask())) continue;
            entries_[hole] = entries_[at];
            hole = at;
        }
        entries_[hole].slot = none;
        count_--;
    }
    [[nodiscard]] std::size_t size() const { return count_; }
    [[nodiscard]] bool empty() const { return count_ == 0; }

  private:
    struct Entry {
        GroupKey key;
        std::uint32_t slot = none;
    };

    [[nodiscard]] std::size_t mask() const { return entries_.size() - 1; }
    // The key is a hash already.
    [[nodiscard]] std::size_t home(const GroupKey& key) const {
        return static_cast<std::size_t>(key.low ^ key.high) & mask();
    }
    [[nodiscard]] std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
    void place(const Entry& entry) {
        std::size_t at = home(entry.key);
        while (entries_[at].slot != none) at = next(at);
        entries_[at] = entry;
    }
    void grow() {
        std::vector<Entry> old(entries_.size() * 2);
        old.swap(entries_);
        for (const Entry& entry : old) {
            if (entry.slot != none) place(entry);
        }
    }

    std::vector<Entry> entries_;
    std::size_t count_ = 0;
};

}  // namespace rollring
