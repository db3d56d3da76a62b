#pragma once
// A ring for one test: with a unique name, always removed at the end.

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>

#include "process.hpp"
#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"

namespace rollring::test {

class TestRing : public ScratchRing {
  public:
    explicit TestRing(const RingOptions& options = {.lanes = 4, .lane_bytes = 1 << 20})
        : ScratchRing("ring", options) {}

    [[nodiscard]] Producer producer(const ProducerOptions& options = {}) const {
        auto opened = Producer::open(name(), options);
        REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
        return std::move(*opened);
    }
    [[nodiscard]] Consumer consumer(const ConsumerOptions& options = {}) const {
        auto opened = Consumer::open(name(), options);
        REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
        return std::move(*opened);
    }
};

// A record of `tokens` tokens, each of which is the repetition ID.
struct Sent {
    std::string prompt = "prompt";
    std::uint32_t repetition = 0;
    std::uint32_t group_size = 0;
    std::uint32_t attempt = 0;
    std::optional<double> reward = std::nullopt;
    std::uint64_t tokens = 3;
};
Push send(Producer& producer, const Sent& record = {}, Deadline deadline = patience());

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
