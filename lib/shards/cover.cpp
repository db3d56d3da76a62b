#include "cover.hpp"

#include <algorithm>

namespace rollring::shards {

IndexBox IndexBox::of(std::span<const std::int64_t> start, std::span<const std::int64_t> length) {
    IndexBox made;
    made.dims = start.size();
    for (std::size_t i = 0; i < start.size(); i++) made.at[i] = {start[i], start[i] + length[i]};
    return made;
}

bool intersect(const IndexBox& a, const IndexBox& b, IndexBox& common) {
    common.dims = a.dims;
    for (std::size_t i = 0; i < a.dims; i++) {
        common.at[i] = {std::max(a.at[i].begin, b.at[i].begin), std::min(a.at[i].end, b.at[i].end)};
        if (common.at[i].begin >= common.at[i].end) return false;
    }
    return true;
}

void Uncovered::keep_rest(IndexBox whole, const IndexBox& common) {
    for (std::size_t i = 0; i < whole.dims; i++) {
        const Range all = whole.at[i];
        if (all.begin < common.at[i].begin) {
            whole.at[i] = {all.begin, common.at[i].begin};
            rest_.push_back(whole);
        }
        if (common.at[i].end < all.end) {
            whole.at[i] = {common.at[i].end, all.end};
            rest_.push_back(whole);
        }
        whole.at[i] = common.at[i];
    }
}

}  // namespace rollring::shards
