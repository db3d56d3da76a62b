#pragma once
// JSON that we write: reports as documents, and pieces of lines as text.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace rollring::cli {

using Json = nlohmann::ordered_json;

// On one line. A number that is none, or infinite, is null.
std::string dump_json(const Json& value);
// What dump_json() wrote; null if it is cut off.
Json parse_report(std::string_view text);

// The shortest text that parses back to the same number; integral values keep their ".0" or lose
// it. JSON has no NaN and no infinity: they are the strings "NaN", "Infinity" and "-Infinity",
// which are numbers again when they are read.
enum class Integral { with_point, plain };
void append_number(std::string& out, double value, Integral integral);
void append_number(std::string& out, float value, Integral integral);
void append_number(std::string& out, std::int64_t value);
void append_number(std::string& out, std::uint64_t value);

// In quotes, escaped; bytes that are not UTF-8 become U+FFFD.
void append_string(std::string& out, std::string_view text);

std::string base64(std::span<const std::byte> bytes);
// Nothing if the text is not what base64() writes.
std::optional<std::vector<std::byte>> from_base64(std::string_view text);

}  // namespace rollring::cli
