#pragma once
// Which scenarios run in which tier, within which bounds, and what each must have met.

#include <memory>
#include <string>
#include <vector>

#include "scenarios.hpp"

namespace model {

struct Suite {
    std::string name;
    std::unique_ptr<Program> program;
    Bounds bounds{};
    std::uint64_t random = 0;            // so many seeded executions; 0: every one there is
    std::uint64_t executions_floor = 1;  // fewer is a failure of the suite
    std::vector<Mark> must;              // each at least marks_floor times
    bool must_crash = false;
    bool must_sleep = false;
};

inline constexpr std::uint64_t marks_floor = 100;

enum class Tier { quick, full };
std::vector<Suite> suites(Tier tier);

// Mistakes of a caller of the lane core that must be found.
std::vector<Suite> misuses();

}  // namespace model
