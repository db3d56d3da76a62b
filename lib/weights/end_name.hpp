#pragma once
// The names of both ends of a weight channel.

#include <string_view>

#include "rollring/error.hpp"

namespace rollring::weights {

inline constexpr std::size_t end_name_bytes_max = 31;

// `what`: a publisher or a subscriber. invalid_argument.
Result<void> check_end_name(std::string_view what, std::string_view name);

}  // namespace rollring::weights
