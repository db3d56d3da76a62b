#pragma once
// JSON as Python's json module writes it: NaN, Infinity and -Infinity are numbers.
//
// nlohmann::json does not know these literals. parse_json() hands them over as marked strings,
// which dump_json() and to_number() turn back; all JSON of this program goes through these
// functions.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rollring::cli {

using Json = nlohmann::ordered_json;

// Why a line cannot be a record. Thrown by the parsers, caught where the line's number is known.
struct BadRecord : std::runtime_error {
    using std::runtime_error::runtime_error;
};

Json parse_json(std::string_view text);
std::string dump_json(const Json& value);

// A number or one of the three literals; nothing for any other kind of value.
std::optional<double> to_number(const Json& value);

// The shortest text that parses back to the same number; integral values keep their ".0" or lose
// it.
enum class Integral { with_point, plain };
void append_number(std::string& out, double value, Integral integral);
void append_number(std::string& out, float value, Integral integral);
void append_number(std::string& out, std::int64_t value);
void append_number(std::string& out, std::uint64_t value);

// In quotes, escaped; bytes that are not UTF-8 become U+FFFD.
void append_string(std::string& out, std::string_view text);

std::string base64(std::span<const std::byte> bytes);

}  // namespace rollring::cli
