#pragma once
// Events about producers, oldest first. A full queue drops its oldest event and counts it.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "rollring/consumer.hpp"

namespace rollring {

class EventQueue {
  public:
    void push(Event event) {
        if (events_.size() == events_max) {
            events_.pop_front();
            missed_++;
        }
        events_.push_back(std::move(event));
    }
    // False if the queue is empty.
    [[nodiscard]] bool pop(Event& event) {
        if (events_.empty()) return false;
        event = std::move(events_.front());
        events_.pop_front();
        return true;
    }
    [[nodiscard]] std::uint64_t missed() const { return missed_; }

  private:
    static constexpr std::size_t events_max = 1024;
    std::deque<Event> events_;
    std::uint64_t missed_ = 0;
};

}  // namespace rollring
