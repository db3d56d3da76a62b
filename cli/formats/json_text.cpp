#include "cli/formats/json_text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>

namespace rollring::cli {
namespace {

constexpr std::string_view base64_digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// The letter of each escape in a string, and its character.
constexpr std::string_view escaped = "\"\\\b\f\n\r\t";
constexpr std::string_view escapes = "\"\\bfnrt";

template <class T>
void append_float(std::string& out, T value, Integral integral) {
    if (std::isnan(value)) {
        out += "\"NaN\"";
    } else if (std::isinf(value)) {
        out += value < 0 ? "\"-Infinity\"" : "\"Infinity\"";
    } else {
        std::array<char, 40> text;  // up to its length
        const char* end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
        const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
        out += digits;
        const bool plain = digits.find_first_of(".e") == std::string_view::npos;
        // An integer has no -0: without its point it would lose the sign.
        if (plain && (integral == Integral::with_point || digits == "-0")) out += ".0";
    }
}

// Half of a surrogate pair in the three bytes of its number in UTF-8; 0 if it is another character.
unsigned surrogate_at(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    if (text.size() < 3 || byte(0) != 0xed || byte(1) < 0xa0 || byte(1) > 0xbf) return 0;
    if (byte(2) < 0x80 || byte(2) > 0xbf) return 0;
    return 0xd000U | (byte(1) & 0x3fU) << 6 | (byte(2) & 0x3fU);
}

template <class T>
void append_integer(std::string& out, T value) {
    std::array<char, 24> text;  // up to its length
    out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
}

}  // namespace

void append_number(std::string& out, double value, Integral integral) {
    append_float(out, value, integral);
}

void append_number(std::string& out, float value, Integral integral) {
    append_float(out, value, integral);
}

void append_number(std::string& out, std::int64_t value) {
    append_integer(out, value);
}

void append_number(std::string& out, std::uint64_t value) {
    append_integer(out, value);
}

std::size_t utf8_bytes(std::string_view text) {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    if (text.empty()) return 0;
    const unsigned lead = byte(0);
    if (lead < 0x80) return 1;
    const std::size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    bool good = lead >= 0xc2 && lead <= 0xf4 && byte(1) >= least && byte(1) <= most;
    for (std::size_t i = 2; i <= more; i++) good &= byte(i) >= 0x80 && byte(i) <= 0xbf;
    return good ? more + 1 : 0;
}

void append_string(std::string& out, std::string_view text) {
    out += '"';
    while (!text.empty()) {
        const char c = text.front();
        std::size_t bytes = utf8_bytes(text);
        if (const unsigned half = surrogate_at(text); half != 0) {
            fmt::format_to(std::back_inserter(out), "\\u{:04x}", half);
            bytes = 3;
        } else if (bytes == 0) {
            out += "\xEF\xBF\xBD";
        } else if (const auto at = escaped.find(c); at != std::string_view::npos) {
            out += '\\';
            out += escapes[at];
        } else if (static_cast<unsigned char>(c) < 0x20) {
            fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += text.substr(0, bytes);
        }
        text.remove_prefix(std::max<std::size_t>(bytes, 1));
    }
    out += '"';
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
