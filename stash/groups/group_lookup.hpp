#pragma once
// Finds a group's index by its key. The table has 96 bits of each key, which distinguishes groups
// in practice; the whole key is stored with the group, and find() compares it there.

#include <cstdint>

#include "probe_table.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

class GroupLookup {
  public:
    static constexpr std::uint32_t none = ~std::uint32_t{0};

    // `key_of(index)`: the key of the group with this index.
    template <class KeyOf>
    [[nodiscard]] std::uint32_t find(const GroupKey& key, KeyOf key_of) const {
        const Entry wanted = entry_of(key, none);
        const Entry* found = table_.find(wanted.home(), [&](const Entry& entry) {
            return entry.like(wanted) && key_of(entry.index) == key;
        });
        return found != nullptr ? found->index : none;
    }

    // Requires that the key is absent.
    void insert(const GroupKey& key, std::uint32_t index) { table_.insert(entry_of(key, index)); }
    // Requires that the key is present with this index.
    void erase(const GroupKey& key, std::uint32_t index) {
        const std::uint32_t home = entry_of(key, index).home();
        table_.erase(
            table_.find(home, [index](const Entry& entry) { return entry.index == index; }));
    }
    [[nodiscard]] std::size_t size() const { return table_.size(); }
    [[nodiscard]] bool empty() const { return size() == 0; }

  private:
    struct Entry {
        std::uint64_t low = 0;
        std::uint32_t high = 0;
        std::uint32_t index = none;

        [[nodiscard]] bool is_empty() const { return index == none; }
        // The key is a hash already.
        [[nodiscard]] std::uint32_t home() const { return static_cast<std::uint32_t>(low) ^ high; }
        [[nodiscard]] bool like(const Entry& other) const {
            return low == other.low && high == other.high;
        }
    };
    static Entry entry_of(const GroupKey& key, std::uint32_t index) {
        return {key.low, static_cast<std::uint32_t>(key.high), index};
    }

    ProbeTable<Entry> table_;
};

}  // namespace rollring
