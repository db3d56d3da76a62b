#pragma once
// How many places a node has in advance, as python/rollring/integrations/ray/_demand.py has it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace bench::scale {

class Demand {
  public:
    void sent(std::int64_t now_ns, std::size_t records) { sent_.emplace_back(now_ns, records); }
    void answered(std::uint32_t asked, bool is_short) {
        if (is_short) {
            count_ /= 2;
        } else if (asked > 0) {
            count_ = std::min(spare_most, std::max(first, 2 * count_));
        }
    }
    [[nodiscard]] std::uint32_t places(std::int64_t now_ns) {
        const std::int64_t begin_ns = now_ns - late_ns;
        if (!sent_.empty() && sent_.back().first < begin_ns) sent_.clear();
        while (sent_.size() > late_sends && sent_.front().first < begin_ns) sent_.pop_front();
        std::size_t late = 0;
        for (const auto& [_, records] : sent_) late += records;
        count_ = std::min(count_, late);
        return late < few ? 0 : static_cast<std::uint32_t>(count_);
    }

  private:
    static constexpr std::size_t spare_most = 64;
    static constexpr std::size_t first = 16;
    static constexpr std::size_t few = 4;
    static constexpr std::int64_t late_ns = 1'000'000'000;
    static constexpr std::size_t late_sends = 16;

    std::size_t count_ = 0;
    std::deque<std::pair<std::int64_t, std::size_t>> sent_;  // when so many records were sent
};

}  // namespace bench::scale
