#pragma once
// Numbers of one dtype as numbers of another: 8 to 64 bit integers, f16, bf16, f32, f64, bool. As
// C++ converts them, a float to an integer towards zero, a float to a shorter one to the nearest
// (ties to even); every number but 0 is true. No allocation, any thread.

#include <cstddef>
#include <cstdint>

#include "rollring/export.hpp"
#include "rollring/schema.hpp"

namespace rollring {

// Equal dtypes always can, also those that are no numbers here (f8e4m3).
ROLLRING_API bool can_convert(DType from, DType to);

// False if a value is out of the range of an integer target (that element is 0 then, the others
// are right), or if it cannot be converted at all. `from` and `to` are aligned to their elements
// and do not overlap.
ROLLRING_API bool convert(DType from_type, const std::byte* from, DType to_type, std::byte* to,
                          std::uint64_t elements);

// The same number in each element. False as above, and nothing is written.
ROLLRING_API bool fill(DType type, double value, std::byte* to, std::uint64_t elements);

}  // namespace rollring
