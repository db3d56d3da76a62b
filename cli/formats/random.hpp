#pragma once
// Small repeatable random numbers: the same on every machine and in every process of a shard.

#include <cstdint>
#include <span>
#include <utility>

namespace rollring::cli {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        return z ^ (z >> 31);
    }

    // 0 to bound - 1. The bias of 2^-64 * bound does not matter here.
    std::uint64_t below(std::uint64_t bound) {
        __extension__ using Wide = unsigned __int128;
        return static_cast<std::uint64_t>(static_cast<Wide>(next()) * bound >> 64);
    }

  private:
    std::uint64_t state_;
};

// Fisher-Yates.
template <class T>
void shuffle(std::span<T> values, Random& random) {
    for (std::size_t left = values.size(); left > 1; left--) {
        std::swap(values[left - 1], values[random.below(left)]);
    }
}

}  // namespace rollring::cli
