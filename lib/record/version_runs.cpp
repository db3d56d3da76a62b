#include "rollring/trajectory.hpp"

#include <algorithm>

namespace rollring {

VersionRange version_range(std::span<const std::int64_t> runs, std::uint32_t n_tokens,
                           std::uint32_t n_prompt) {
    VersionRange range;
    for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {
        const std::int64_t start = runs[i];
        const std::int64_t version = runs[i + 1];
        if (start < 0 || start > n_tokens) {
            return {-1, -1, "has a run that starts outside the tokens"};
        }
        if (i > 0 && start <= runs[i - 2]) return {-1, -1, "has runs that are not in order"};
        const std::int64_t end = i + 2 < runs.size() ? runs[i + 2] : n_tokens;
        if (end <= n_prompt || version < 0) continue;
        range.min = range.max < 0 ? version : std::min(range.min, version);
        range.max = std::max(range.max, version);
    }
    return range;
}

std::vector<std::int64_t> version_runs(std::span<const std::int64_t> of_tokens) {
    std::vector<std::int64_t> runs;
    for (std::size_t i = 0; i < of_tokens.size(); i++) {
        if (i > 0 && of_tokens[i] == of_tokens[i - 1]) continue;
        runs.push_back(static_cast<std::int64_t>(i));
        runs.push_back(of_tokens[i]);
    }
    return runs;
}

}  // namespace rollring
