#pragma once
// Producers killed in the middle of groups, while the trainer lives.

#include <cstdint>
#include <string>
#include <vector>

#include "rollring/stash.hpp"

namespace rollring::test {

void kill_rollouts(std::uint64_t seed, std::uint64_t kills, AtDeadline at_deadline);

// --mortal FD RING LIFE: the role that they start.
int mortal_role(const std::vector<std::string>& arguments);

}  // namespace rollring::test
