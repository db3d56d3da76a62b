#include "cli/terminal/quantity.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace rollring::cli {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr std::array byte_units{
    Unit{"", 1.0},     Unit{"B", 1.0},      Unit{"K", 0x1p10}, Unit{"KiB", 0x1p10},
    Unit{"M", 0x1p20}, Unit{"MiB", 0x1p20}, Unit{"G", 0x1p30}, Unit{"GiB", 0x1p30},
    Unit{"T", 0x1p40}, Unit{"TiB", 0x1p40},
};
constexpr std::array time_units{
    Unit{"", 1e3}, Unit{"ms", 1.0}, Unit{"s", 1e3}, Unit{"m", 60e3}, Unit{"h", 3600e3},
};

bool same(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::ranges::equal(a, b, [&](char x, char y) { return lower(x) == lower(y); });
}

template <std::size_t count>
std::optional<double> parse_with(const std::array<Unit, count>& units, std::string_view text) {
    if (text.empty() || !((text[0] >= '0' && text[0] <= '9') || text[0] == '.')) {
        return std::nullopt;  // neither sign nor inf
    }
    double value = 0;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value, std::chars_format::fixed);
    if (error != std::errc{}) return std::nullopt;
    const std::string_view unit(end, static_cast<std::size_t>(last - end));
    for (const auto& known : units) {
        if (same(known.name, unit) && value * known.factor < 0x1p62) return value * known.factor;
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
    if (const auto plain = parse_count(text)) return plain;
    const auto bytes = parse_with(byte_units, text);
    if (!bytes || *bytes != std::floor(*bytes)) return std::nullopt;
    return static_cast<std::uint64_t>(*bytes);
}

std::optional<std::int64_t> parse_duration_ms(std::string_view text) {
    const auto ms = parse_with(time_units, text);
    if (!ms || *ms > 1e15) return std::nullopt;
    return static_cast<std::int64_t>(std::llround(*ms));
}

std::optional<std::uint64_t> parse_count(std::string_view text) {
    std::uint64_t value = 0;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    if (text.empty() || error != std::errc{} || end != last) return std::nullopt;
    return value;
}

std::optional<Shard> parse_shard(std::string_view text) {
    const auto slash = text.find('/');
    if (slash == std::string_view::npos) return std::nullopt;
    const auto index = parse_count(text.substr(0, slash));
    const auto count = parse_count(text.substr(slash + 1));
    if (!index || !count || *index >= *count) return std::nullopt;
    return Shard{*index, *count};
}

std::string bytes_text(std::uint64_t bytes) {
    constexpr std::array names{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < names.size()) {
        value /= 1024;
        unit++;
    }
    if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, names[unit]);
    return fmt::format("{:.1f} {}", value, names[unit]);
}

std::string count_text(std::uint64_t count) {
    std::string text = fmt::format("{}", count);
    for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
    return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
    const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
    const char* const ending = count == 1 ? "" : hisses ? "es" : "s";
    return fmt::format("{} {}{}", count_text(count), noun, ending);
}

std::string short_text(double value) {
    constexpr std::array names{"", "k", "M", "G", "T"};
    std::size_t unit = 0;
    while (std::abs(value) >= 1000 && unit + 1 < names.size()) {
        value /= 1000;
        unit++;
    }
    return fmt::format("{:.{}f}{}", value, unit == 0 ? 0 : 2, names[unit]);
}

std::string duration_text(double seconds) {
    if (seconds < 60) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 0);
    const auto whole = static_cast<std::uint64_t>(seconds);
    if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string digest_text(std::uint64_t digest) {
    return fmt::format("0x{:016x}", digest);
}

std::int64_t nanoseconds(std::int64_t ms) {
    constexpr std::int64_t most_ms = std::numeric_limits<std::int64_t>::max() / 1'000'000;
    return std::min(ms, most_ms) * 1'000'000;
}

std::optional<std::uint64_t> parse_digest(std::string_view text) {
    if (!text.starts_with("0x")) return std::nullopt;
    std::uint64_t value = 0;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data() + 2, last, value, 16);
    if (error != std::errc{} || end != last) return std::nullopt;
    return value;
}

}  // namespace rollring::cli
