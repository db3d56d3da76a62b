#pragma once
// Translates the library's field names in refusals into the program's options.

#include <string>
#include <string_view>

namespace rollring::cli {

// "lane_bytes is 0 B, must be ..." -> "--lane-bytes is 0 B, must be ...". For the messages of
// Errc::invalid_argument; a name outside RingOptions and StashOptions stays unchanged.
std::string with_option_names(std::string_view message);

}  // namespace rollring::cli
