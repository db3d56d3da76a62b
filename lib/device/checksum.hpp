#pragma once
// The checksum of a piece: a sum, so that any number of GPU threads can add to it in any order. The
// packed bytes are read as little-endian u32 words, the last one padded with zeros; each word is
// mixed with its index and the results are added modulo 2^64. Finds flipped, moved and missing
// words, but not bytes that were chosen to match. Mixing: multiply-xorshift after Steele, Lea,
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, shortened to one round.

#include <cstdint>

#ifdef __CUDACC__
#define ROLLRING_HOST_DEVICE __host__ __device__
#else
#define ROLLRING_HOST_DEVICE
#endif

namespace rollring::device {

ROLLRING_HOST_DEVICE inline std::uint64_t mix_word(std::uint32_t word, std::uint64_t index) {
    std::uint64_t mixed = (index << 32 ^ word) + 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 30;
    mixed *= 0xbf58476d1ce4e5b9;
    return mixed ^ mixed >> 27;
}

}  // namespace rollring::device
