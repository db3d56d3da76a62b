#pragma once
// The records that lay unread in the lanes at one moment: where the freshest groups ship first,
// they may be among them.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "consumer_core.hpp"

namespace rollring {

class Backlog {
  public:
    // `core` outlives this.
    explicit Backlog(ConsumerCore& core) : core_(&core) {}

    void note() {
        ends_.clear();
        core_->roster().look_if_due();  // producers that came since the last poll
        for (const std::uint32_t lane : core_->roster().active()) {
            ends_.push_back(
                {lane, core_->roster().feed(lane).epoch(), observe(core_->map().owner(lane).tail)});
        }
    }
    // Nothing of it is left, except in lanes that give nothing until something is released, or
    // nothing any more: a lane that was given up never gets to the tail that it had.
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
    std::vector<End> ends_;  // by lane, how far it was committed
};

}  // namespace rollring
