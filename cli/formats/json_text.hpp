#pragma once
// Pieces of JSON as text.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rollring::cli {

// The shortest text that parses back to the same number; integral values keep their ".0" or lose
// it. JSON has neither NaN nor infinity: they become the strings "NaN", "Infinity" and "-Infinity",
// which are read as numbers again.
enum class Integral { with_point, plain };
void append_number(std::string& out, double value, Integral integral);
void append_number(std::string& out, float value, Integral integral);
void append_number(std::string& out, std::int64_t value);
void append_number(std::string& out, std::uint64_t value);

// The bytes of the first character: no overlong form, no surrogate, nothing beyond U+10FFFF. 0 if
// it is invalid.
std::size_t utf8_bytes(std::string_view text);

// In quotes, escaped. Half of a surrogate pair (JsonValue::string) becomes an escape again; other
// bytes that are not UTF-8 become U+FFFD.
void append_string(std::string& out, std::string_view text);

std::string base64(std::span<const std::byte> bytes);
// Empty if the text is not an output of base64().
std::optional<std::vector<std::byte>> from_base64(std::string_view text);

}  // namespace rollring::cli
