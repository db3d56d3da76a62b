#pragma once
// Remembers, for a bounded time and number, which groups are over.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "slot_index.hpp"

namespace rollring {

class Tombstones {
  public:
    Tombstones(std::int64_t keep_ns, std::uint32_t count_max)
        : keep_ns_(keep_ns), count_max_(count_max) {}

    void bury(const GroupKey& key, std::int64_t now_ns) {
        if (count_max_ == 0 || holds(key)) return;
        buried_.insert(key, 0);
        order_.push_back({key, now_ns + keep_ns_});
        while (order_.size() > count_max_) forget();
        if (order_.size() == count_max_) prefetch(order_[std::min(soon, order_.size() - 1)].key);
    }
    // For bury() and holds(): with many of them each is a miss.
    void prefetch(const GroupKey& key) const { buried_.prefetch(key); }

    void tick(std::int64_t now_ns) {
        while (!order_.empty() && order_.front().until_ns <= now_ns) forget();
    }

    [[nodiscard]] bool holds(const GroupKey& key) const {
        return buried_.find(key) != SlotIndex::none;
    }
    [[nodiscard]] std::size_t count() const { return order_.size(); }

  private:
    static constexpr std::size_t soon = 8;  // forgotten, after so many more are buried

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
    SlotIndex buried_;
    std::deque<Stone> order_;
};

}  // namespace rollring
