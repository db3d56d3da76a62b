#pragma once
// The groups of the leased batches.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rollring/error.hpp"

namespace rollring {

class LeasedGroups {
  public:
    void lease(std::uint64_t batch_id, std::vector<std::uint32_t> groups) {
        count_ += groups.size();
        batches_.emplace(batch_id, std::move(groups));
    }
    std::vector<std::uint32_t> end(std::uint64_t batch_id) {
        auto leased = batches_.extract(batch_id);
        ROLLRING_ASSERT(!leased.empty(), "a batch can be given back only once");
        count_ -= leased.mapped().size();
        return std::move(leased.mapped());
    }
    [[nodiscard]] std::size_t batches() const { return batches_.size(); }
    [[nodiscard]] std::size_t groups() const { return count_; }

  private:
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> batches_;
    std::size_t count_ = 0;
};

}  // namespace rollring
