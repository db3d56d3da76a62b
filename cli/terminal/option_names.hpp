#pragma once
// What the library refuses by the names of its fields, as the program calls them.

#include <string>
#include <string_view>

namespace rollring::cli {

// "lane_bytes is 0 B, must be ..." -> "--lane-bytes is 0 B, must be ...". For the messages of
// Errc::invalid_argument; one that is not of RingOptions or StashOptions stays as it is.
std::string with_option_names(std::string_view message);

}  // namespace rollring::cli
