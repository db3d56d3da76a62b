#pragma once
// Frames of a lane that is not mapped: reading one allocates no page, and cannot fault.

#include <cstdint>

#include "segment.hpp"

namespace rollring {

struct FramesByRead {
    const Segment& segment;
    std::uint64_t data_offset;

    // An empty frame, which is not valid, if it cannot be read.
    [[nodiscard]] Frame read(std::uint64_t offset) const {
        Frame frame{};
        if (!segment.read(data_offset + offset, &frame, sizeof frame)) frame = Frame{};
        return frame;
    }
};

}  // namespace rollring
