#pragma once
// The policy versions that sampled the tokens of a record: runs of {start token, version}, as the
// column policy_version has them.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rollring/export.hpp"

namespace rollring {

// The oldest and the newest version that sampled a generated token; -1: none did.
struct VersionRange {
    std::int64_t min = -1;
    std::int64_t max = -1;
    std::string_view problem;  // of runs that are none: which start outside the tokens, or disorder
};
[[nodiscard]] ROLLRING_API VersionRange version_range(std::span<const std::int64_t> runs,
                                                      std::uint32_t n_tokens,
                                                      std::uint32_t n_prompt);

// The runs of one version per token.
[[nodiscard]] ROLLRING_API std::vector<std::int64_t> version_runs(
    std::span<const std::int64_t> of_tokens);

}  // namespace rollring
