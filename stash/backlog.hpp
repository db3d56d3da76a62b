#pragma once
// The records that were unread in the lanes at one moment. With Order::freshest they may contain
// the groups that ship next.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "consumer_core.hpp"

namespace rollring {

class Backlog {
  public:
    // `core` must outlive this object.
    explicit Backlog(ConsumerCore& core) : core_(&core) {}

    void note() {
        ends_.clear();
        core_->roster().look_if_due();  // finds producers that came since the last poll
        for (const std::uint32_t lane : core_->roster().active()) {
            ends_.push_back(
                {lane, core_->roster().feed(lane).epoch(), observe(core_->map().owner(lane).tail)});
        }
    }
    // Whether all of them were read, except in lanes that deliver nothing until a record is
    // released, or nothing more at all: a lane that was given up never reaches its former tail.
    [[nodiscard]] bool was_read() const {
        return std::ranges::all_of(ends_, [this](const End& end) {
            if (!core_->roster().has(end.lane)) return true;
            const LaneFeed& feed = core_->roster().feed(end.lane);
            return feed.epoch() != end.epoch || !feed.active() || feed.blocked() ||
                   feed.quarantined() || feed.read_position() >= end.tail;
        });
    }

  private:
    struct End {
        std::uint32_t lane;
        std::uint32_t epoch;
        std::uint64_t tail;
    };

    ConsumerCore* core_;
    std::vector<End> ends_;  // each lane's tail at that moment
};

}  // namespace rollring
