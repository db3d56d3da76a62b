#pragma once
// Delivered, unreleased bytes of a lane, and the bytes delivered since the oldest of them.

#include <algorithm>
#include <cstdint>

namespace rollring {

class LaneHoldings {
  public:
    // `cursor`: position of the oldest unreleased record, possibly of the delivered one.
    void deliver(std::uint64_t bytes, std::uint64_t cursor) {
        oldest_at(cursor);
        unreleased_bytes_ += bytes;
        delivered_bytes_ += bytes;
    }
    void give_back(std::uint64_t bytes, std::uint64_t cursor) {
        unreleased_bytes_ -= bytes;
        oldest_at(cursor);
    }
    void oldest_at(std::uint64_t position) {
        if (position == oldest_position_) return;
        oldest_position_ = position;
        delivered_at_oldest_ = delivered_bytes_;
    }
    // A record of the spill is read.
    void note_largest(std::uint64_t bytes) {
        largest_bytes_ = std::max(unreleased_bytes_ == 0 ? 0 : largest_bytes_, bytes);
    }

    [[nodiscard]] std::uint64_t unreleased_bytes() const { return unreleased_bytes_; }
    [[nodiscard]] std::uint64_t delivered_since_oldest() const {
        return delivered_bytes_ - delivered_at_oldest_;
    }
    // The largest record since nothing was held.
    [[nodiscard]] std::uint64_t largest_bytes() const { return largest_bytes_; }

  private:
    std::uint64_t unreleased_bytes_ = 0;
    std::uint64_t largest_bytes_ = 0;
    std::uint64_t delivered_bytes_ = 0;
    std::uint64_t delivered_at_oldest_ = 0;
    std::uint64_t oldest_position_ = 0;
};

}  // namespace rollring
