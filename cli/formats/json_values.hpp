#pragma once
// Checked reading of JSON values into columns. All throw BadRecord naming `key`.

#include <fmt/core.h>

#include <limits>

#include "cli/formats/json_value.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

[[noreturn]] inline void bad(std::string_view key, std::string_view why) {
    throw BadRecord(fmt::format("'{}' {}", key, why));
}

// The value as text for an error message, shortened.
std::string excerpt(JsonValue value);

template <class T>
T integer_to(T most, std::string_view key, JsonValue value) {
    if (!value.is_integer()) bad(key, fmt::format("must be an integer, not {}", excerpt(value)));
    if (const auto number = value.number<T>(); number && *number <= most) return *number;
    bad(key, fmt::format("is {}, outside {} to {}", excerpt(value), std::numeric_limits<T>::min(),
                         most));
}

template <class T>
T integer(std::string_view key, JsonValue value) {
    return integer_to(std::numeric_limits<T>::max(), key, value);
}

// `T` is float or double.
template <class T>
T real(std::string_view key, JsonValue value);
std::string string(std::string_view key, JsonValue value);
bool boolean(std::string_view key, JsonValue value);
// The number of elements of a list.
std::uint32_t count(std::string_view key, JsonValue list);
// The members of an object. Throws if a key occurs twice, because one of the two would be lost.
std::vector<JsonMember> members(JsonValue object);
// A value as text for a column of JSON.
std::string compact(JsonValue value);

// One-dimensional lists.
void read_i32(std::string_view key, JsonValue value, ParsedRecord& record, Std column);
void read_f32(std::string_view key, JsonValue value, ParsedRecord& record, Std column);
void read_mask(std::string_view key, JsonValue value, ParsedRecord& record);

// [n][k] lists. False if the rows have different lengths: then nothing is read.
bool read_topk_ids(std::string_view key, JsonValue value, ParsedRecord& record);
bool read_topk_logprobs(std::string_view key, JsonValue value, ParsedRecord& record);

// [n][layers][k], into u8, u16 or i32, depending on its greatest id.
void read_experts(std::string_view key, JsonValue value, ParsedRecord& record);

// Every column with one row per token must have n_tokens of them. Required columns of the schema
// beyond the standard ones must exist if the record's status promises tokens.
void check_columns(const ParsedRecord& record, const Schema& schema);

}  // namespace rollring::cli
