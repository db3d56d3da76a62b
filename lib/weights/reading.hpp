#pragma once
// The device's outstanding reads of the publisher's slots, and their report to the publisher.

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
    // All must outlive this object. `own`: the page that this subscriber writes; both bells are
    // rung.
    Reading(device::Mover& mover, SubscriberPage& own, Bell& own_bell, Bell& publisher_bell)
        : mover_(&mover), own_(&own), own_bell_(&own_bell), publisher_bell_(&publisher_bell) {}
    // The device calls back here while it reads: wait for is_quiet().
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

    // Starts a publication whose parts are numbered from here on. Requires that nothing is being
    // read.
    void start(std::uint64_t first_part_number);
    // The part in a slot counts as read once the stream gets there. After an error it does not.
    // `by`: the mover whose stream it is.
    Result<void> finish_part(std::uint64_t part_number, std::uint32_t slot, Stream stream) {
        return finish_part(part_number, slot, stream, *mover_);
    }
    Result<void> finish_part(std::uint64_t part_number, std::uint32_t slot, Stream stream,
                             device::Mover& by);
    // All parts before this one have been read; later work of the device that finish_part() counts
    // for them reads something else.
    void say_read(std::uint64_t end_part_number);
    // Reports that publications up to this one are no longer read, once that is true.
    void leave(std::uint64_t publication);

    [[nodiscard]] bool is_read(std::uint64_t end_part_number) const {
        return peek(own_->read_done) >= end_part_number;
    }
    // No callback is left, until the next part is read.
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
    std::atomic<std::uint32_t> calls_ = 0;      // callbacks to come, or running

    std::mutex mutex_;
    std::uint32_t being_read_ = 0;         // parts
    std::set<std::uint64_t> read_ahead_;   // beyond the page's `read_done`
    std::uint64_t left_publications_ = 0;  // up to here, once nothing is being read
};

}  // namespace rollring::weights
