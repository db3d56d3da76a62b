#pragma once
// What the stash computes from the rewards of a group: GRPO's advantages and their relatives.

#include <cstdint>
#include <span>
#include <string_view>

#include "rollring/export.hpp"

namespace rollring {

enum class Advantages : std::uint8_t { none, grpo, mean, loo };
// Of a group's rewards: over n - 1 (torch's `std`), or over n (numpy's).
enum class Deviation : std::uint8_t { sample, population };
// As they are written here.
ROLLRING_API std::string_view name(Advantages kind);
ROLLRING_API std::string_view name(Deviation kind);

// The defaults are those of TRL's GRPOTrainer.
struct AdvantageFormula {
    Advantages kind = Advantages::grpo;
    Deviation deviation = Deviation::sample;  // grpo divides by it
    double epsilon = 1e-4;                    // and by this in addition
};

// Advantages of one group, from the rewards of its members:
//   none  0
//   grpo  (r - mean) / (deviation + epsilon)
//   mean  r - mean
//   loo   r - mean of the others (RLOO)
// A NaN stands for a reward that is absent. It takes no part, and an infinite reward takes none:
// the advantage of that member is 0, and those of the others are computed as if it were not in the
// group. All are 0 where fewer than two rewards are left, and in a flat group. Never NaN.
// Source: DeepSeekMath (GRPO); Ahmadian et al. 2024 (RLOO). advantages.size() == rewards.size().
ROLLRING_API void group_advantages(std::span<const double> rewards, const AdvantageFormula& formula,
                                   std::span<double> advantages);

// Whether the rewards of a group differ by rounding only. That holds where the highest and the
// lowest are no more than 1e-6 of their size apart; their size is the larger magnitude of the two,
// and 1e-6 at least (sums that cancel out leave rounding near 0). float32 has 1.2e-7.
[[nodiscard]] ROLLRING_API bool are_flat(double lowest, double highest);

}  // namespace rollring
