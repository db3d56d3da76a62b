#pragma once
// Shows producers that the consumer reads, and how many lanes share its turns: they wait for it
// while they are far ahead, and divide the cache among so many lanes.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ring_map.hpp"

namespace rollring {

class ReadPace {
  public:
    explicit ReadPace(ReaderControl& control) : control_(&control), turns_(peek(control.turns)) {}

    // A lane has delivered this much in its turn.
    void end_turn(std::int64_t bytes) {
        bytes_ += bytes;
        lanes_++;
        poke(control_->turns, ++turns_);
    }
    // Every lane has had a turn. Lanes deliver in bursts, so the busiest round of some counts.
    void end_round() {
        busiest_ = std::max(busiest_, std::exchange(lanes_, 0));
        if (bytes_ < window_bytes) return;
        keep(control_->busy_lanes, busiest_);
        bytes_ = 0;
        busiest_ = 0;
    }

  private:
    static constexpr std::int64_t window_bytes = std::int64_t{4} << 20;

    ReaderControl* control_;
    std::uint64_t turns_;
    std::uint32_t lanes_ = 0;  // of this round
    std::uint32_t busiest_ = 0;
    std::int64_t bytes_ = 0;
};

}  // namespace rollring
