#pragma once
// Several producers share an input, and each ends at the first bad record of its own share.

#include <string>
#include <vector>

#include "cli/commands/input_options.hpp"

namespace rollring::cli {

// The first record of the input that is a bad one, as "FILE:LINE: what is wrong". `met`: those that
// producers met, of which there is one at least.
std::string first_bad(const InputOptions& input, const std::vector<std::string>& met);

}  // namespace rollring::cli
