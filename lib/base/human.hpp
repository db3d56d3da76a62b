#pragma once
// Quantities and owners as errors name them.

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace rollring {

std::string human_bytes(std::uint64_t bytes);  // "64 MiB", "4.9 KiB", "100 B"
std::string human_count(std::uint64_t count);  // "1,234,567"
std::string user_text(uid_t uid);              // "alice (uid 1000)", "uid 1000" if nobody knows

}  // namespace rollring
