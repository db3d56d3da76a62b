#pragma once
// Quantities and owners as errors name them.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace rollring {

std::string human_bytes(std::uint64_t bytes);  // "64 MiB", "4.9 KiB", "100 B"
std::string human_count(std::uint64_t count);  // "1,234,567"
// "1 group", "1,200 groups", "2 batches"
std::string counted(std::uint64_t count, std::string_view noun);
std::string user_text(uid_t uid);  // "alice (uid 1000)"; "uid 1000" without a name

}  // namespace rollring
