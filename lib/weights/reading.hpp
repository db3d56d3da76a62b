#pragma once
// A subscriber's pending reads of the publisher's slots, and the report of their end to the
// publisher.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "backend.hpp"
#include "control.hpp"

namespace rollring::weights {

class Reading {
  public:
    // All of it outlives this. `own`: the page that this subscriber writes; both bells are rung.
    Reading(device::Mover& mover, SubscriberPage& own, Bell& own_bell, Bell& publisher_bell)
        : mover_(&mover), own_(&own), own_bell_(&own_bell), publisher_bell_(&publisher_bell) {}
    // The device calls back here while it reads: wait for is_quiet().
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

    // A publication whose parts are numbered from here on. Nothing else is being read.
    void start(std::uint64_t first_part_number);
    // The part in a slot is read once the stream gets there. On an error it is not said to be.
    Result<void> finish_part(std::uint64_t part_number, std::uint32_t slot, Stream stream);
    // Says that nothing is read any more of publications up to this one, once that is so.
    void leave(std::uint64_t publication);

    [[nodiscard]] bool is_read(std::uint64_t end_part_number) const {
        return peek(own_->read_done) >= end_part_number;
    }
    // No callback comes here any more, until the next part is read.
    [[nodiscard]] bool is_quiet() const { return calls_ == 0; }
    // Waits for that; false at the deadline, or if the device has failed.
    bool drain(Deadline deadline) const;

  private:
    // A part that the device is reading.
    struct Part {
        Reading* self = nullptr;
        std::uint64_t number = 0;
    };
    static void part_reached(void* part);
    void say_what_is_left();

    device::Mover* mover_;
    SubscriberPage* own_;
    Bell* own_bell_;
    Bell* publisher_bell_;
    std::vector<std::unique_ptr<Part>> parts_;  // by slot
    std::atomic<std::uint32_t> calls_ = 0;      // that are to come, or have not returned

    std::mutex mutex_;
    std::uint32_t being_read_ = 0;         // parts
    std::set<std::uint64_t> read_ahead_;   // beyond the page's `read_done`
    std::uint64_t left_publications_ = 0;  // up to here, once nothing is being read
};

}  // namespace rollring::weights
