#pragma once
// Whether tensors that are written by different published ones share memory: whichever is copied
// last would win, without a word.

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "rollring/weight_tensor.hpp"

namespace rollring::weights {

// The names of two that do; each tensor is checked (check_tensor). Exact for every layout of up to
// some 10 million runs of bytes; beyond that, tensors that interleave are taken to be apart.
std::optional<std::pair<std::string_view, std::string_view>> find_overlap(
    std::span<const WeightTensor* const> written);

}  // namespace rollring::weights
