#pragma once

#include <cstdint>

namespace rollring {

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) {
    return (bytes + to - 1) / to * to;
}

}  // namespace rollring
