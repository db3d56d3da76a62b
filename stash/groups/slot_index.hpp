#pragma once
// Finds a group's slot by its key. Holds 96 bits of each key, which tells groups apart in practice;
// the whole key lies with the group, and find() asks there.

#include <cstdint>

#include "probe_table.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

class SlotIndex {
  public:
    static constexpr std::uint32_t none = ~std::uint32_t{0};

    // `key_of(slot)`: the key of the group there.
    template <class KeyOf>
    [[nodiscard]] std::uint32_t find(const GroupKey& key, KeyOf key_of) const {
        const Entry wanted = entry_of(key, none);
        const Entry* found = table_.find(wanted.home(), [&](const Entry& entry) {
            return entry.like(wanted) && key_of(entry.slot) == key;
        });
        return found != nullptr ? found->slot : none;
    }
    // Where it is if it is there: for fetching ahead, asks no group.
    [[nodiscard]] std::uint32_t likely(const GroupKey& key) const {
        const Entry wanted = entry_of(key, none);
        const Entry* found =
            table_.find(wanted.home(), [&](const Entry& entry) { return entry.like(wanted); });
        return found != nullptr ? found->slot : none;
    }
    void prefetch(const GroupKey& key) const { table_.prefetch(entry_of(key, none).home()); }

    // The key is not in it.
    void insert(const GroupKey& key, std::uint32_t slot) { table_.insert(entry_of(key, slot)); }
    // It is, with that slot.
    void erase(const GroupKey& key, std::uint32_t slot) {
        const std::uint32_t home = entry_of(key, slot).home();
        table_.erase(table_.find(home, [slot](const Entry& entry) { return entry.slot == slot; }));
    }
    [[nodiscard]] std::size_t size() const { return table_.size(); }
    [[nodiscard]] bool empty() const { return size() == 0; }

  private:
    struct Entry {
        std::uint64_t low = 0;
        std::uint32_t high = 0;
        std::uint32_t slot = none;

        [[nodiscard]] bool is_empty() const { return slot == none; }
        // The key is a hash already.
        [[nodiscard]] std::uint32_t home() const { return static_cast<std::uint32_t>(low) ^ high; }
        [[nodiscard]] bool like(const Entry& other) const {
            return low == other.low && high == other.high;
        }
    };
    static Entry entry_of(const GroupKey& key, std::uint32_t slot) {
        return {key.low, static_cast<std::uint32_t>(key.high), slot};
    }

    ProbeTable<Entry> table_;
};

}  // namespace rollring
