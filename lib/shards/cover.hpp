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

class Uncovered {
  public:
    void start(const IndexBox& whole) {
        left_.clear();
        left_.push_back(whole);
    }
    [[nodiscard]] bool empty() const { return left_.empty(); }
    [[nodiscard]] const IndexBox& first() const { return left_.front(); }

    // Takes away the elements that are in `box`, and calls taken(IndexBox) for each box of them.
    template <class Taken>
    void take(const IndexBox& box, const Taken& taken) {
        next_.clear();
        for (const IndexBox& one : left_) {
            IndexBox common;
            if (!intersect(one, box, common)) {
                next_.push_back(one);
                continue;
            }
            taken(common);
            keep_rest(one, common);
        }
        left_.swap(next_);
    }

  private:
    static bool intersect(const IndexBox& a, const IndexBox& b, IndexBox& common);
    // The elements of `whole` without those of `common`, as disjoint boxes.
    void keep_rest(IndexBox whole, const IndexBox& common);

    std::vector<IndexBox> left_;
    std::vector<IndexBox> next_;
};

}  // namespace rollring::shards
