#pragma once
// Events in the order of their time, and machines that do one piece of work after the other.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "cli/terminal/interrupts.hpp"
#include "clock.hpp"

namespace bench::scale {

// Ctrl-C: objects of the run are removed on the way out.
struct Interrupted {};

// Those of one moment happen in the order in which they were asked for.
class Events {
  public:
    using Call = std::function<void()>;

    void at(std::int64_t when_ns, Call call) {
        queue_.push({std::max(when_ns, clock_ns), next_++, std::move(call)});
    }
    void after_us(double us, Call call) { at(clock_ns + ns_of(us * 1e-6), std::move(call)); }

    // Moves the clock.
    void run_until(std::int64_t end_ns) {
        while (!queue_.empty() && queue_.top().when_ns <= end_ns) {
            if (rollring::cli::interrupted()) throw Interrupted();
            clock_ns = queue_.top().when_ns;
            const Call call = std::move(queue_.top().call);
            queue_.pop();
            call();
        }
        clock_ns = end_ns;
    }

  private:
    struct Event {
        std::int64_t when_ns;
        std::uint64_t number;
        mutable Call call;  // taken away before it is removed: nothing is ordered by it
        bool operator<(const Event& other) const {
            return std::pair(when_ns, number) > std::pair(other.when_ns, other.number);
        }
    };
    std::priority_queue<Event> queue_;
    std::uint64_t next_ = 0;
};

// A link, a core, an event loop.
class Server {
  public:
    // When work that comes now will be done.
    std::int64_t done_ns(double seconds) {
        free_ns_ = std::max(free_ns_, clock_ns) + ns_of(seconds);
        busy_ns_ += ns_of(seconds);
        return free_ns_;
    }
    // Since the last call, as a share of the time.
    double share_since(std::int64_t begin_ns) {
        const double share = seconds_of(busy_ns_) / seconds_of(clock_ns - begin_ns);
        busy_ns_ = 0;
        return share;
    }
    void forget() { busy_ns_ = 0; }

  private:
    std::int64_t free_ns_ = 0;
    std::int64_t busy_ns_ = 0;
};

}  // namespace bench::scale
