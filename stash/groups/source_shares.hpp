#pragma once
// The tokens that each source has shipped, divided by its weight: weighted fair queuing.

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "rollring/stash.hpp"

namespace rollring {

class SourceShares {
  public:
    // The weights must outlive this object.
    explicit SourceShares(std::span<const SourceWeight> weights) : weights_(weights) {}

    [[nodiscard]] bool weighted() const { return !weights_.empty(); }
    [[nodiscard]] double weight(std::int64_t source_id) const {
        for (const SourceWeight& source : weights_) {
            if (source.source_id == source_id) return source.weight;
        }
        return 1.0;
    }
    // Tokens that the source has shipped, divided by its weight.
    [[nodiscard]] double served(std::int64_t source_id) const {
        const auto found = served_.find(source_id);
        return found != served_.end() ? found->second : floor();
    }
    void serve(std::int64_t source_id, double weighted_tokens) {
        served_.try_emplace(source_id, floor()).first->second += weighted_tokens;
    }

  private:
    // The start of a source that joins late: level with the one served least.
    [[nodiscard]] double floor() const {
        const auto least =
            std::ranges::min_element(served_, {}, [](const auto& source) { return source.second; });
        return least != served_.end() ? least->second : 0.0;
    }

    std::span<const SourceWeight> weights_;
    std::unordered_map<std::int64_t, double> served_;
};

}  // namespace rollring
