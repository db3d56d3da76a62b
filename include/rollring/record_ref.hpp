#pragma once
// Names a delivered record of a ring; small, trivially copyable, valid until released.

#include <cstdint>

#include "rollring/export.hpp"

namespace rollring {

struct RecordRef {
    std::uint64_t position;
    std::uint32_t lane;
    std::uint32_t lines;  // bytes in the lane / 64

    [[nodiscard]] std::uint64_t bytes() const { return std::uint64_t{lines} * 64; }
    friend bool operator==(const RecordRef&, const RecordRef&) = default;
};

}  // namespace rollring
