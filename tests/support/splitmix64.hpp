#pragma once
// SplitMix64 (Steele, Lea, Flood 2014): numbers that look random and follow from a seed.

#include <cstdint>

namespace rollring::test {

inline constexpr std::uint64_t splitmix64_step = 0x9e3779b97f4a7c15;

inline std::uint64_t mix(std::uint64_t value) {
    value += splitmix64_step;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

struct Dice {
    std::uint64_t state;
    std::uint64_t next() { return mix(state++); }
    std::uint64_t below(std::uint64_t limit) { return next() % limit; }
};

}  // namespace rollring::test
