#pragma once
// The lanes of a ring that one process writes to. It continues in another lane when one is full,
// returns to lanes that were read out, and gives back lanes that it has not needed for a while. One
// thread at a time.

#include <cstdint>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/producer.hpp"

namespace rollring {

class WriterLanes {
  public:
    // `most`: lanes at a time. The map must outlive this object.
    WriterLanes(const RingMap& map, std::string ring, std::string name, std::size_t most)
        : map_(&map), ring_(std::move(ring)), name_(std::move(name)), most_(most) {}

    // Visible after flush() at the latest.
    Push push_later(const Draft& draft, Deadline deadline, RecordRef& at);
    void flush();
    // Gives back lanes without records that were not written to recently.
    void give_back_idle();
    // The reason why the last call did not return Push::ok.
    [[nodiscard]] const std::string& problem() const { return problem_; }

  private:
    struct Held {
        Producer producer;
        std::int64_t used_ns;
    };
    Push push_to_held(const Draft& draft, Deadline deadline, RecordRef& at);
    bool take_lane(bool any);
    [[nodiscard]] bool some_lane_is_free(bool any) const;
    [[nodiscard]] bool empty(std::uint32_t lane) const;

    const RingMap* map_;
    std::string ring_;
    std::string name_;
    std::size_t most_;
    std::vector<Held> held_;  // the first is written to
    std::string problem_;
};

}  // namespace rollring
