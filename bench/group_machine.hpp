#pragma once

#include <cstdint>

namespace bench {

inline constexpr std::uint32_t machine_group_size = 8;
inline constexpr std::uint32_t machine_batch_groups = 32;

// The group machine alone, without a ring: ns that one record costs while so many groups are open.
double machine_ns(std::uint64_t open_groups, double seconds);

}  // namespace bench
