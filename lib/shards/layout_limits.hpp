#pragma once

#include <cstddef>
#include <cstdint>

namespace rollring::shards {

inline constexpr std::size_t dims_max = 16;
inline constexpr std::size_t name_bytes_max = 1023;
inline constexpr std::uint64_t elements_max = std::uint64_t{1} << 40;
inline constexpr std::uint64_t entries_max = std::uint64_t{1} << 24;  // of each table
inline constexpr std::uint32_t ranks_max = 1 << 16;

}  // namespace rollring::shards
