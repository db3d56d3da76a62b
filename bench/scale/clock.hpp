#pragma once
// The time of a simulated run. In a program that links this, the whole process has it, the library
// included: clock_gettime() says nothing else.

#include <cstdint>

namespace bench::scale {

inline constexpr std::int64_t clock_begin_ns = 1'000'000'000'000;
extern std::int64_t clock_ns;

constexpr std::int64_t ns_of(double seconds) {
    return static_cast<std::int64_t>(seconds * 1e9);
}
constexpr double seconds_of(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-9;
}

}  // namespace bench::scale
