#pragma once
// A ring for one test: a name nobody else uses, removed at the end whatever happened.

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"

namespace rollring::test {

class TestRing {
  public:
    explicit TestRing(const RingOptions& options = {.lanes = 4, .lane_bytes = 1 << 20}) {
        static std::atomic<int> number{0};
        name_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(number++);
        const auto made = create_ring(name_, options);
        REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().to_string()));
    }
    TestRing(const TestRing&) = delete;
    TestRing& operator=(const TestRing&) = delete;
    ~TestRing() { static_cast<void>(remove_ring(name_, true)); }

    [[nodiscard]] const std::string& name() const { return name_; }

    [[nodiscard]] Producer producer(const ProducerOptions& options = {}) const {
        auto opened = Producer::open(name_, options);
        REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
        return std::move(*opened);
    }
    [[nodiscard]] Consumer consumer(const ConsumerOptions& options = {}) const {
        auto opened = Consumer::open(name_, options);
        REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
        return std::move(*opened);
    }

  private:
    std::string name_;
};

// Long enough for any loaded machine; tests wait for conditions, not for times.
inline Deadline patience() {
    return Deadline::after_ms(30'000);
}

// Until the consumer, which has read all there is, has told that a producer closed.
inline void await_close(Consumer& consumer) {
    Record record;
    Event event;
    for (bool told = false; !told;) {
        REQUIRE(consumer.wait(record, Deadline::after_ms(20)) == Poll::timed_out);
        while (consumer.next_event(event)) told |= event.kind == Event::Kind::producer_closed;
    }
}

}  // namespace rollring::test
