#include "cli/terminal/colour.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace rollring::cli {
namespace {

ColourMode colour_mode = ColourMode::automatic;

const char* start_of(Style style) {
    switch (style) {
        case Style::error:
            return "\x1b[31m";
        case Style::warning:
            return "\x1b[33m";
        case Style::heading:
            return "\x1b[1m";
    }
    return "";
}

bool is_heading(std::string_view line) {
    if (line.size() < 2 || line.back() != ':' || line[0] < 'A' || line[0] > 'Z') return false;
    return std::ranges::all_of(line.substr(1, line.size() - 2), [](char c) {
        return c == ' ' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    });
}

}  // namespace

void set_colour_mode(ColourMode mode) {
    colour_mode = mode;
}

bool coloured(int descriptor) {
    if (colour_mode != ColourMode::automatic) return colour_mode == ColourMode::always;
    const char* const refused = std::getenv("NO_COLOR");
    if (refused != nullptr && *refused != '\0') return false;
    return moves_cursor(descriptor);
}

bool moves_cursor(int descriptor) {
    const char* const terminal = std::getenv("TERM");
    if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
    return ::isatty(descriptor) != 0;
}

std::string painted(Style style, std::string_view text, int descriptor) {
    if (!coloured(descriptor)) return std::string(text);
    return fmt::format("{}{}\x1b[0m", start_of(style), text);
}

std::string painted_help(std::string_view text, int descriptor) {
    constexpr std::string_view usage = "Usage:";
    std::string out;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        if (is_heading(line)) {
            out += painted(Style::heading, line, descriptor);
        } else if (line.starts_with(usage)) {
            out += painted(Style::heading, usage, descriptor);
            out += line.substr(usage.size());
        } else {
            out += line;
        }
        if (end < text.size()) out += '\n';
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out;
}

}  // namespace rollring::cli
