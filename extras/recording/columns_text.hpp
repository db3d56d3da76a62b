#pragma once
// The columns of a schema beyond the standard ones, as the text of a recording's file: a line each,
//
//   <name> <dtype> token|record required|optional exact|any_integer|any <dims with commas, or ->

#include <string>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"

namespace rollring::recording {

[[nodiscard]] std::string columns_text(const Schema& schema);
// Errc::not_a_ring: a line is none of these, or names a column that a schema refuses.
[[nodiscard]] Result<Schema> schema_of(std::string_view text);

}  // namespace rollring::recording
