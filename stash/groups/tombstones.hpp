#pragma once
// Remembers finished groups, for a bounded time and up to a bounded number.

#include <cstddef>
#include <cstdint>
#include <deque>

#include "probe_table.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

class Tombstones {
  public:
    Tombstones(std::int64_t keep_ns, std::uint32_t count_max)
        : keep_ns_(keep_ns), count_max_(count_max) {}

    void add(const GroupKey& key, std::int64_t now_ns) {
        if (count_max_ == 0 || holds(key)) return;
        keys_.insert({key_of(key)});
        order_.push_back({key, now_ns + keep_ns_});
        while (order_.size() > count_max_) forget();
    }

    void tick(std::int64_t now_ns) {
        while (!order_.empty() && order_.front().until_ns <= now_ns) forget();
    }

    [[nodiscard]] bool holds(const GroupKey& key) const { return find(key) != nullptr; }
    [[nodiscard]] std::size_t count() const { return order_.size(); }

  private:
    struct Entry {
        GroupKey key;
        [[nodiscard]] bool is_empty() const { return key == GroupKey{}; }
        [[nodiscard]] std::uint32_t home() const {
            return static_cast<std::uint32_t>(key.low ^ key.high);
        }
    };
    // Zero marks an empty entry: the one hash in 2^128 that is zero shares the entry of another
    // one.
    static GroupKey key_of(const GroupKey& key) {
        return key == GroupKey{} ? GroupKey{~std::uint64_t{0}, 0} : key;
    }
    [[nodiscard]] const Entry* find(const GroupKey& key) const {
        const Entry wanted{key_of(key)};
        return keys_.find(wanted.home(),
                          [&](const Entry& entry) { return entry.key == wanted.key; });
    }

    struct Stone {
        GroupKey key;
        std::int64_t until_ns;
    };
    void forget() {
        keys_.erase(find(order_.front().key));
        order_.pop_front();
    }

    std::int64_t keep_ns_;
    std::uint32_t count_max_;
    ProbeTable<Entry> keys_;
    std::deque<Stone> order_;
};

}  // namespace rollring
