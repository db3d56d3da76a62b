#pragma once
// `--format rollring`: one record a line, in the shape of the GSM8K rollouts.
//
//   {"instance_id":"gsm8k/test/0","repetition_id":0,"group_size":4,"source":"math","n_prompt":63,
//    "reward":0,"tokens":[...]}
//
// A value that would read back as a default (null, "visit": 0, an unknown key) is kept in the
// column `extra`, so that the written record equals the one that was read. A key that is the name
// of a column of the ring's schema is that column (custom_columns.hpp). Tokens may have other keys
// (token_keys.hpp); they are written as "tokens".

#include <span>
#include <string>

#include "cli/formats/census.hpp"
#include "cli/formats/json_value.hpp"
#include "cli/formats/meant_keys.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

// Throws BadRecord with the key and its fault, or with all missing keys. A record without
// repetition_id has none: json_source.cpp counts it. `watch` sees keys that are neither fields nor
// columns.
void parse_rollring(JsonValue line, const Schema& schema, ParsedRecord& record,
                    KeyWatch* watch = nullptr);

// A line's statements about its group, if possible without reading its columns. Throws BadRecord if
// it is not a record.
Membership membership_of(JsonValue line);

// Whether this key of a line means a field of ours, so that no column can have the name.
bool is_rollring_key(std::string_view key);
// The names of the fields, without the tokens.
std::span<const std::string_view> rollring_keys();

// Appends one line, with its end. Returns the columns whose JSON was invalid and was written as a
// string; empty if there are none.
std::string append_rollring_line(std::string& out, const TrajectoryView& record,
                                 const Schema& schema);

}  // namespace rollring::cli
