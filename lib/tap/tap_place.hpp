#pragma once
// How far a tap has come in each lane, and its memory for one record.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "layout.hpp"

namespace rollring {

struct TapPlace {
    std::uint64_t at = 0;   // a position: everything below was read or passed
    std::uint64_t end = 0;  // of this round
    bool begun = false;
    std::uint32_t named_epoch = 0;
    std::string name;  // of the producer of that epoch
};

// Aligned as records are in a ring.
class TapCopy {
  public:
    std::byte* room(std::uint64_t bytes) {
        if (lines_ == nullptr || bytes > bytes_) {
            bytes_ = std::max({bytes, 2 * bytes_, line_bytes});
            lines_ = std::make_unique_for_overwrite<Line[]>((bytes_ + line_bytes - 1) / line_bytes);
        }
        return lines_[0].bytes;
    }

  private:
    struct alignas(line_bytes) Line {
        std::byte bytes[line_bytes];
    };
    std::unique_ptr<Line[]> lines_;
    std::uint64_t bytes_ = 0;
};

}  // namespace rollring
