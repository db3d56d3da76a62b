#pragma once
// The sequences of a batch in bins of so many tokens: micro-batches that fill what a step can hold.

#include <cstdint>
#include <span>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/export.hpp"

namespace rollring {

struct MicroBatches {
    std::vector<std::vector<std::uint32_t>> bins;  // indices of sequences, in rising order
    double fill = 0;                               // tokens of all over bins times the budget
};

// Best fit, the longest first: never more than 11/9 of the fewest bins that can be, plus one.
// `lengths`: tokens of each sequence. The same for the same lengths, whoever asks.
// Errc::invalid_argument where a sequence is longer than the budget, or the budget is 0.
ROLLRING_API Result<MicroBatches> micro_batches(std::span<const std::uint32_t> lengths,
                                                std::uint64_t token_budget);

}  // namespace rollring
