#pragma once
// Remembers, for a bounded time and number, which groups are over.

#include <cstdint>
#include <deque>
#include <unordered_set>

#include "rollring/trajectory.hpp"

namespace rollring {

struct GroupKeyHash {
    // The key is a hash already.
    std::size_t operator()(const GroupKey& key) const { return static_cast<std::size_t>(key.low); }
};

class Tombstones {
  public:
    Tombstones(std::int64_t keep_ns, std::uint32_t count_max)
        : keep_ns_(keep_ns), count_max_(count_max) {}

    void bury(const GroupKey& key, std::int64_t now_ns) {
        if (count_max_ == 0 || !buried_.insert(key).second) return;
        order_.push_back({key, now_ns + keep_ns_});
        while (order_.size() > count_max_) forget();
    }

    void tick(std::int64_t now_ns) {
        while (!order_.empty() && order_.front().until_ns <= now_ns) forget();
    }

    [[nodiscard]] bool holds(const GroupKey& key) const { return buried_.contains(key); }
    [[nodiscard]] std::size_t count() const { return order_.size(); }

  private:
    struct Stone {
        GroupKey key;
        std::int64_t until_ns;
    };
    void forget() {
        buried_.erase(order_.front().key);
        order_.pop_front();
    }

    std::int64_t keep_ns_;
    std::uint32_t count_max_;
    std::unordered_set<GroupKey, GroupKeyHash> buried_;
    std::deque<Stone> order_;
};

}  // namespace rollring
