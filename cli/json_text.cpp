#include "cli/json_text.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace rollring::cli {
namespace {

struct Literal {
    std::string_view text;    // as Python writes it
    std::string_view marked;  // a JSON string that no one else writes
    std::string_view parsed;  // the value of that string
    double value;
};

constexpr std::array literals{
    Literal{"NaN", "\"\\u0001NaN\"", "\x01NaN", std::numeric_limits<double>::quiet_NaN()},
    Literal{"-Infinity", "\"\\u0001-Infinity\"", "\x01-Infinity",
            -std::numeric_limits<double>::infinity()},
    Literal{"Infinity", "\"\\u0001Infinity\"", "\x01Infinity",
            std::numeric_limits<double>::infinity()},
};

// Puts the marked strings in place of the literals, which count only outside of strings.
std::string mark_literals(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 64);
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (in_string && c == '\\' && i + 1 < text.size()) {
            out += c;
            out += text[++i];
            continue;
        }
        if (c == '"') in_string = !in_string;
        const Literal* found = nullptr;
        if (!in_string && (c == 'N' || c == 'I' || c == '-')) {
            for (const auto& literal : literals) {
                if (text.substr(i).starts_with(literal.text)) found = &literal;
            }
        }
        if (found != nullptr) {
            out += found->marked;
            i += found->text.size() - 1;
        } else {
            out += c;
        }
    }
    return out;
}

// nlohmann's text without its own name and the line, which is always 1.
std::string reason_of(const std::exception& error) {
    std::string_view text = error.what();
    for (const std::string_view noise : {"] ", "parse error at line 1, ", "parse error "}) {
        const auto at = text.find(noise);
        if (at != std::string_view::npos) text.remove_prefix(at + noise.size());
    }
    return "not JSON: " + std::string(text.substr(0, 160));
}

template <class T>
void append_float(std::string& out, T value, Integral integral) {
    if (std::isnan(value)) {
        out += "NaN";
    } else if (std::isinf(value)) {
        out += value < 0 ? "-Infinity" : "Infinity";
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

Json parse_json(std::string_view text) {
    const bool plain = text.find("NaN") == std::string_view::npos &&
                       text.find("Infinity") == std::string_view::npos;
    try {
        return plain ? Json::parse(text) : Json::parse(mark_literals(text));
    } catch (const Json::exception& error) {
        throw BadRecord(reason_of(error));
    }
}

std::string dump_json(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.find("\"\\u0001") == std::string::npos) return text;
    for (const auto& literal : literals) {
        for (std::size_t at = 0; (at = text.find(literal.marked, at)) != std::string::npos;) {
            text.replace(at, literal.marked.size(), literal.text);
        }
    }
    return text;
}

std::optional<double> to_number(const Json& value) {
    if (value.is_number()) return value.get<double>();
    if (!value.is_string()) return std::nullopt;
    const auto& text = value.get_ref<const std::string&>();
    for (const auto& literal : literals) {
        if (text == literal.parsed) return literal.value;
    }
    return std::nullopt;
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
    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t have = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 3; j++) {
            bits = bits << 8 | (j < have ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0U);
        }
        for (std::size_t j = 0; j < 4; j++) {
            out += j <= have ? digits[bits >> (18 - 6 * j) & 63] : '=';
        }
    }
    return out;
}

}  // namespace rollring::cli
