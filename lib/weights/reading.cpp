#include "reading.hpp"

#include <thread>

#include "control_socket.hpp"
#include "doorbell.hpp"
#include "rollring/time.hpp"

namespace rollring::weights {

void Reading::start(std::uint64_t first_part_number) {
    const std::scoped_lock lock(mutex_);
    read_ahead_.clear();
    store_release(own_->read_done, first_part_number);
}

// Requires the mutex.
void Reading::say_what_is_left() {
    if (being_read_ == 0 && left_publications_ > peek(own_->publications_read)) {
        store_release(own_->publications_read, left_publications_);
    }
}

// Runs on a thread of the driver, or inside finish_part.
void Reading::part_reached(void* context) {
    const Part part = *static_cast<Part*>(context);
    Reading& self = *part.self;
    {
        const std::scoped_lock lock(self.mutex_);
        std::uint64_t done = peek(self.own_->read_done);
        if (part.number >= done) self.read_ahead_.insert(part.number);
        while (self.read_ahead_.erase(done) == 1) done++;
        store_release(self.own_->read_done, done);
        self.being_read_--;
        self.say_what_is_left();
    }
    ring_plain(*self.publisher_bell_);
    ring_plain(*self.own_bell_);
    self.calls_--;  // last: the subscriber may be gone from here on
}

Result<void> Reading::finish_part(std::uint64_t part_number, std::uint32_t slot, Stream stream,
                                  device::Mover& by) {
    if (slot >= parts_.size()) parts_.resize(slot + 1);
    if (!parts_[slot]) parts_[slot] = std::make_unique<Part>();
    *parts_[slot] = {this, part_number};
    {
        const std::scoped_lock lock(mutex_);
        being_read_++;
    }
    calls_++;
    auto queued = by.when_reached(stream, part_reached, parts_[slot].get());
    if (queued) return {};
    calls_--;
    const std::scoped_lock lock(mutex_);
    being_read_--;
    return queued;
}

void Reading::say_read(std::uint64_t end_part_number) {
    {
        const std::scoped_lock lock(mutex_);
        store_release(own_->read_done, end_part_number);
    }
    ring_plain(*publisher_bell_);
}

void Reading::leave(std::uint64_t publication) {
    {
        const std::scoped_lock lock(mutex_);
        left_publications_ = publication;
        say_what_is_left();
    }
    ring_plain(*publisher_bell_);
}

bool Reading::drain(Deadline deadline) const {
    constexpr std::int64_t awake_ns = 20'000'000;  // an engine may have paused for it
    const std::int64_t awake_until = monotonic_ns() + awake_ns;
    while (!is_quiet()) {
        if (deadline.passed()) return false;
        if (monotonic_ns() < awake_until) {
            std::this_thread::yield();
            continue;
        }
        if (!mover_->health()) return false;
        nap();
    }
    return true;
}

}  // namespace rollring::weights
