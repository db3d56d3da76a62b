#include "cli/json_text.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>

namespace rollring::cli {
namespace {

constexpr std::string_view base64_digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

template <class T>
void append_float(std::string& out, T value, Integral integral) {
    if (std::isnan(value)) {
        out += "\"NaN\"";
    } else if (std::isinf(value)) {
        out += value < 0 ? "\"-Infinity\"" : "\"Infinity\"";
    } else {
        std::array<char, 40> text{};
        const char* end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
        const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
        out += digits;
        const bool plain = digits.find_first_of(".e") == std::string_view::npos;
        // An integer has no -0: without its point it would lose the sign.
        if (plain && (integral == Integral::with_point || digits == "-0")) out += ".0";
    }
}

}  // namespace

std::string dump_json(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_report(std::string_view text) {
    Json report = Json::parse(text, nullptr, false);
    return report.is_discarded() ? Json() : report;
}

void append_number(std::string& out, double value, Integral integral) {
    append_float(out, value, integral);
}

void append_number(std::string& out, float value, Integral integral) {
    append_float(out, value, integral);
}

void append_number(std::string& out, std::int64_t value) {
    fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_number(std::string& out, std::uint64_t value) {
    fmt::format_to(std::back_inserter(out), "{}", value);
}

void append_string(std::string& out, std::string_view text) {
    out += Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string base64(std::span<const std::byte> bytes) {
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t have = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 3; j++) {
            bits = bits << 8 | (j < have ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0U);
        }
        for (std::size_t j = 0; j < 4; j++) {
            out += j <= have ? base64_digits[bits >> (18 - 6 * j) & 63] : '=';
        }
    }
    return out;
}

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
    if (text.size() % 4 != 0) return std::nullopt;
    const std::size_t pads = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
    std::vector<std::byte> bytes;
    bytes.reserve(text.size() / 4 * 3);
    for (std::size_t i = 0; i < text.size(); i += 4) {
        const std::size_t digits = i + 4 == text.size() ? 4 - pads : 4;
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 4; j++) {
            const auto digit = j < digits ? base64_digits.find(text[i + j]) : 0;
            if (digit == std::string_view::npos) return std::nullopt;
            bits = bits << 6 | static_cast<std::uint32_t>(digit);
        }
        for (std::size_t j = 0; j + 1 < digits; j++) {
            bytes.push_back(static_cast<std::byte>(bits >> (16 - 8 * j) & 0xff));
        }
    }
    return bytes;
}

}  // namespace rollring::cli
