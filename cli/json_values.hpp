#pragma once
// Checked reading of JSON values into columns. All throw BadRecord naming `key`.

#include <fmt/format.h>

#include <limits>

#include "cli/json_text.hpp"
#include "cli/parsed_record.hpp"

namespace rollring::cli {

[[noreturn]] inline void bad(std::string_view key, std::string_view why) {
    throw BadRecord(fmt::format("'{}' {}", key, why));
}

// The value as text for an error message, cut short.
std::string excerpt(const Json& value);

template <class T>
T integer(std::string_view key, const Json& value) {
    constexpr auto least = std::numeric_limits<T>::min();
    constexpr auto most = std::numeric_limits<T>::max();
    if (value.is_number_unsigned()) {
        const auto number = value.get<std::uint64_t>();
        if (std::cmp_less_equal(number, most)) return static_cast<T>(number);
    } else if (value.is_number_integer()) {
        const auto number = value.get<std::int64_t>();
        if (std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, most)) {
            return static_cast<T>(number);
        }
    } else {
        bad(key, fmt::format("must be an integer, not {}", excerpt(value)));
    }
    bad(key, fmt::format("is {}, outside of {} to {}", excerpt(value), least, most));
}

double real(std::string_view key, const Json& value);
const std::string& string(std::string_view key, const Json& value);
const Json& array(std::string_view key, const Json& value);

// One-dimensional lists.
void read_i32(std::string_view key, const Json& value, ParsedRecord& record, Std column);
void read_f32(std::string_view key, const Json& value, ParsedRecord& record, Std column);
void read_mask(std::string_view key, const Json& value, ParsedRecord& record);

// [n][k] lists. False if the rows have different lengths: then nothing is read.
bool read_topk_ids(std::string_view key, const Json& value, ParsedRecord& record);
bool read_topk_logprobs(std::string_view key, const Json& value, ParsedRecord& record);

// [n][layers][k], into u8, u16 or i32, whichever its greatest id needs.
void read_experts(std::string_view key, const Json& value, ParsedRecord& record);

// Every column that has one row a token must have n_tokens of them.
void check_rows(const ParsedRecord& record);

}  // namespace rollring::cli
