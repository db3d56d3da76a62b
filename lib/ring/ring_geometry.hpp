#pragma once
// From the options of a ring to all its offsets.

#include "geometry.hpp"
#include "rollring/ring.hpp"

namespace rollring::detail {

inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// Sizes that are not given are chosen by the memory limits of this machine. An option that is out
// of its range is refused by name.
Result<Geometry> geometry_of(const RingOptions& options);

}  // namespace rollring::detail
