#pragma once
// `rollring create --schema FILE.json`: columns besides the standard ones.

#include <string>
#include <string_view>

#include "rollring/schema.hpp"

namespace rollring::cli {

// A list of {"name", "dtype", "per": "token"|"record", "dims": [...], "required": bool, "accepts":
// "exact"|"any_integer"|"any"}; all but name and dtype may be left out.
Result<Schema> parse_schema(std::string_view text);
Result<Schema> read_schema_file(const std::string& path);

}  // namespace rollring::cli
