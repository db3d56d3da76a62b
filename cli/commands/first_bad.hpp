#pragma once
// Several producers share an input, and each ends at the first bad record of its own share.

#include <string>
#include <vector>

#include "cli/commands/input_options.hpp"

namespace rollring::cli {

// The first bad record of the input, as "FILE:LINE: the error". `met`: the errors of the producers,
// at least one.
std::string first_bad(const InputOptions& input, const std::vector<std::string>& met);

}  // namespace rollring::cli
