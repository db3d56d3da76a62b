#pragma once
// Quantities in the form for people: 64MiB, 10s, 0/4, 12,345.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rollring::cli {

// "4096", "64KiB", "1.5GiB"; K, M, G, T alone mean the same powers of 1024. Nothing else.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// "10s", "500ms", "2m", "1h"; a bare number is seconds.
std::optional<std::int64_t> parse_duration_ms(std::string_view text);

// One of N shares of the input: records index, index + count, index + 2 * count, ...
struct Shard {
    std::uint64_t index = 0;
    std::uint64_t count = 1;
};
std::optional<Shard> parse_shard(std::string_view text);  // "0/4" to "3/4"

// A whole unsigned number, nothing before or after it.
std::optional<std::uint64_t> parse_count(std::string_view text);

std::string bytes_text(std::uint64_t bytes);  // "64 MiB", "1.5 GiB"
std::string count_text(std::uint64_t count);  // "1,234,567"
// "1 group", "1,200 groups", "2 batches"
std::string counted(std::uint64_t count, std::string_view noun);
std::string short_text(double value);           // "1.23M"
std::string duration_text(double seconds);      // "0.42 s", "1:05", "2:01:05"
std::string digest_text(std::uint64_t digest);  // "0x0123456789abcdef"
std::optional<std::uint64_t> parse_digest(std::string_view text);

// At most the longest representable time.
std::int64_t nanoseconds(std::int64_t ms);

}  // namespace rollring::cli
