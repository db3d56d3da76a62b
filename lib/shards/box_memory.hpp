#pragma once
// Whether the boxes of an engine share memory with each other.

#include <cstdint>
#include <span>
#include <vector>

#include "rollring/weight_layout.hpp"

namespace rollring::shards {

struct MemoryUse {
    // By box: an earlier box has the same elements at the same place, of this tensor or of one that
    // is tied to it.
    std::vector<bool> repeated;
    std::uint64_t padding_elements = 0;  // of all memories, in no box
    std::uint64_t steps = 0;             // comparisons of boxes and of their slices
};

// layout_mismatch (two boxes share memory) or unsupported (a box does with itself, or two are too
// interleaved to be checked), naming tensor and box. `values`: for each tensor, a number for its
// values; tied tensors have the same one.
Result<MemoryUse> check_shared_memory(const WeightLayout& layout,
                                      std::span<const std::uint32_t> values);

}  // namespace rollring::shards
