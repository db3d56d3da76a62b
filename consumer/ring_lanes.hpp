#pragma once
// The lanes of a ring as its reader has them mapped. The spill is not among them: its memory may be
// replaced by the overflow file.

#include "ring_map.hpp"
#include "rollring/batch.hpp"

namespace rollring {

class RingLanes : public MappedLanes {
  public:
    // `all`: the whole ring. Both must outlive this object.
    RingLanes(const RingMap& map, const Mapping& all) : map_(&map), all_(&all) {}

    [[nodiscard]] std::size_t count() const override { return map_->geometry().lane_count; }
    [[nodiscard]] MappedLane lane(std::size_t number) const override {
        const auto lane = static_cast<std::uint32_t>(number);
        const Geometry& geometry = map_->geometry();
        return {all_->data() + geometry.data_offset(lane), geometry.capacity(lane),
                observe(map_->entry(lane).retired_epoch), !map_->lane_is_idle(lane)};
    }

  private:
    const RingMap* map_;
    const Mapping* all_;
};

}  // namespace rollring
