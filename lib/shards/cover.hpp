#pragma once
// The rest of a box, of which parts are taken away one after the other.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layout_limits.hpp"

namespace rollring::shards {

struct Range {
    std::int64_t begin;
    std::int64_t end;
};

// Indices of a tensor's elements, for each dimension.
struct IndexBox {
    std::size_t dims = 0;
    std::array<Range, dims_max> at{};

    static IndexBox of(std::span<const std::int64_t> start, std::span<const std::int64_t> length);
};

// Whether two boxes of a tensor share elements: those of `common`.
bool intersect(const IndexBox& a, const IndexBox& b, IndexBox& common);

class Uncovered {
  public:
    void start(const IndexBox& whole) {
        left_.clear();
        left_.push_back(whole);
    }
    [[nodiscard]] bool empty() const { return left_.empty(); }
    [[nodiscard]] std::size_t size() const { return left_.size(); }
    [[nodiscard]] const IndexBox& first() const { return left_.front(); }

    // Takes away the elements that are in `box`, and calls taken(IndexBox) for each box of them.
    template <class Taken>
    void take(const IndexBox& box, const Taken& taken) {
        rest_.clear();
        for (std::size_t i = 0; i < left_.size();) {
            IndexBox common;
            if (!intersect(left_[i], box, common)) {
                i++;
                continue;
            }
            taken(common);
            keep_rest(left_[i], common);
            left_[i] = left_.back();
            left_.pop_back();
        }
        left_.insert(left_.end(), rest_.begin(), rest_.end());
    }

  private:
    // The elements of `whole` without those of `common`, as disjoint boxes.
    void keep_rest(IndexBox whole, const IndexBox& common);

    std::vector<IndexBox> left_;
    std::vector<IndexBox> rest_;
};

}  // namespace rollring::shards
