#pragma once
// The validation of frames. Every reader uses it, so that all accept the same frames.

#include <cstdint>

#include "geometry.hpp"

namespace rollring {

[[nodiscard]] inline bool is_record(const Frame& frame) {
    return frame.kind == static_cast<std::uint16_t>(FrameKind::record);
}
[[nodiscard]] inline bool is_skip(const Frame& frame) {
    return frame.kind == static_cast<std::uint16_t>(FrameKind::skip);
}

// Copies the frame at `position` once, and validates the copy: it is a record or a skip of that
// position that ends within the lane and not above `end`, and a record's payload ends within it.
// False: the copy must not be used. `position` is a multiple of line_bytes, and below `end`.
template <class Frames>
[[nodiscard, gnu::always_inline]] inline bool checked_frame(const Frames& frames,
                                                            const LaneSize& size,
                                                            std::uint64_t position,
                                                            std::uint64_t end, Frame& frame) {
    const std::uint64_t offset = size.offset(position);
    frame = frames.read(offset);
    return frame.magic == frame_magic && (is_skip(frame) || is_record(frame)) &&
           frame.position == position && frame.bytes % line_bytes == 0 &&
           frame.bytes >= line_bytes && frame.bytes <= size.bytes() - offset &&
           frame.bytes <= end - position &&
           (is_skip(frame) || frame.payload_bytes <= frame.bytes - line_bytes);
}

// Behind damage at `position`, the position of the next valid frame in the same lap; the end of the
// lap, or `end`, if there is none. Frames of earlier laps have other positions.
template <class Frames>
[[nodiscard]] std::uint64_t next_frame(const Frames& frames, const LaneSize& size,
                                       std::uint64_t position, std::uint64_t end) {
    const std::uint64_t lap_end = position - size.offset(position) + size.bytes();
    const std::uint64_t last = end < lap_end ? end : lap_end;
    Frame frame;
    std::uint64_t at = position + line_bytes;
    while (at < last && !checked_frame(frames, size, at, end, frame)) at += line_bytes;
    return at < last ? at : last;
}

}  // namespace rollring
