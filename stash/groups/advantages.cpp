#include "rollring/batch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rollring/error.hpp"

namespace rollring {
namespace {

// The spread of the rewards that are present.
struct Spread {
    double count = 0;
    double sum = 0;
    double lowest = std::numeric_limits<double>::infinity();
    double highest = -std::numeric_limits<double>::infinity();

    explicit Spread(std::span<const double> rewards) {
        for (const double reward : rewards) {
            if (!std::isfinite(reward)) continue;
            count++;
            sum += reward;
            lowest = std::min(lowest, reward);
            highest = std::max(highest, reward);
        }
    }
    [[nodiscard]] bool says_nothing() const {
        return count < 2 || !std::isfinite(sum) || are_flat(lowest, highest);
    }
};

double deviation_of(std::span<const double> rewards, const Spread& spread, Deviation kind) {
    const double mean = spread.sum / spread.count;
    double squares = 0;
    for (const double reward : rewards) {
        if (std::isfinite(reward)) squares += (reward - mean) * (reward - mean);
    }
    return std::sqrt(squares / (spread.count - (kind == Deviation::sample ? 1 : 0)));
}

// The divisor of a distance from the mean.
double divisor_of(std::span<const double> rewards, const Spread& spread,
                  const AdvantageFormula& formula) {
    switch (formula.kind) {
        case Advantages::none:
        case Advantages::mean:
            break;
        case Advantages::loo:
            return (spread.count - 1) / spread.count;
        case Advantages::grpo:
            return deviation_of(rewards, spread, formula.deviation) + formula.epsilon;
    }
    return 1;
}

}  // namespace

bool are_flat(double lowest, double highest) {
    constexpr double within = 1e-6;
    const double size = std::max({std::fabs(lowest), std::fabs(highest), within});
    return highest - lowest <= within * size;
}

void group_advantages(std::span<const double> rewards, const AdvantageFormula& formula,
                      std::span<double> advantages) {
    ROLLRING_ASSERT(rewards.size() == advantages.size(), "one advantage per reward");
    const Spread spread(rewards);
    if (formula.kind == Advantages::none || spread.says_nothing()) {
        std::ranges::fill(advantages, 0.0);
        return;
    }
    const double mean = spread.sum / spread.count;
    const double divisor = divisor_of(rewards, spread, formula);
    for (std::size_t i = 0; i < rewards.size(); i++) {
        const double advantage = (rewards[i] - mean) / divisor;
        // Squares of the largest doubles are infinite, and those of the smallest are 0.
        advantages[i] = std::isfinite(advantage) ? advantage : 0;
    }
}

}  // namespace rollring
