#pragma once
// `--format rollring`: one record a line, in the shape of the GSM8K rollouts.
//
//   {"instance_id":"gsm8k/test/0","repetition_id":0,"group_size":4,"source":"math","n_prompt":63,
//    "reward":0,"tokens":[...]}
//
// What reads back as a default (null, "visit": 0, an unknown key) is kept in the column `extra`, so
// that writing a record gives what was read.

#include <string>

#include "cli/json_text.hpp"
#include "cli/parsed_record.hpp"

namespace rollring::cli {

// Throws BadRecord with the key and what is wrong with it.
void parse_rollring(const Json& object, ParsedRecord& record);

// Appends one line, with its end.
void append_rollring_line(std::string& out, const TrajectoryView& record, const Schema& schema);

}  // namespace rollring::cli
