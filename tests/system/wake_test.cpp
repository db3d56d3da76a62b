// No process is left asleep beside something to do. A lost wake-up would not show: every sleep ends
// after 100 ms. So the bells are watched instead of the clock.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>

#include <thread>
#include <vector>

#include "ring_map.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::TestRing;

namespace {

const std::vector<std::int32_t> wide_tokens(1000);

Draft wide_draft() {
    Draft made("prompt");
    made.set(Std::token_ids, wide_tokens);
    return made;
}

// Says that it waits at a bell, without sleeping.
class Waiter {
  public:
    explicit Waiter(Bell& bell) : bell_(bell), seen_(bell_of(bell).prepare()) {}
    [[nodiscard]] bool rung() const { return bell_.sequence.load() != seen_; }

  private:
    Bell& bell_;
    std::uint32_t seen_;
};

RingMap map_of(const TestRing& ring) {
    auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    return std::move(*map);
}

}  // namespace

TEST_CASE("wake: a skip that gives room back rings the producer") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    const RingMap map = map_of(ring);
    Record record;
    while (producer.push(wide_draft(), Deadline::now()) == Push::ok) {
        REQUIRE(consumer.poll(record) == Poll::record);
        consumer.release(record.ref);
        if (producer.stats().laps_full > 0) break;
    }
    // A record of nearly the whole lane leaves a skip alone, and then needs the bytes behind it.
    const std::vector<std::int32_t> most((64 << 10) / 4 - 256);
    Draft longest("prompt");
    longest.set(Std::token_ids, most);
    REQUIRE(producer.push(longest, Deadline::now()) == Push::timed_out);
    const Waiter waiter(map.lane_bell(producer.lane()));
    REQUIRE(consumer.poll(record) == Poll::empty);  // passes the skip
    CHECK(waiter.rung());
    CHECK(producer.push(longest, Deadline::now()) == Push::ok);
}

TEST_CASE("wake: who was stopped beyond its deadline finds the room that came meanwhile") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    const RingMap map = map_of(ring);
    const pid_t child = rollring::test::start_child([&] {
        auto producer = ring.producer();
        while (producer.push(wide_draft(), Deadline::now()) == Push::ok) continue;
        return producer.push(wide_draft(), Deadline::after_ms(300)) == Push::ok ? 0 : 1;
    });
    const Bell& bell = map.lane_bell(0);
    while (bell.waiting.load() == 0) sched_yield();
    kill(child, SIGSTOP);
    int status = 0;
    REQUIRE(waitpid(child, &status, WUNTRACED) == child);
    REQUIRE(WIFSTOPPED(status));
    for (const Deadline over = Deadline::after_ms(300); !over.passed();) sched_yield();
    Record record;
    while (consumer.poll(record) == Poll::record) consumer.release(record.ref);
    kill(child, SIGCONT);
    CHECK(rollring::test::collect(child) == 0);
}

TEST_CASE("wake: a full lane shows the consumer what was pushed for later") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    const RingMap map = map_of(ring);
    const Waiter waiter(map.consumer_bell());
    while (producer.push_later(wide_draft(), Deadline::now()) == Push::ok) continue;
    CHECK(waiter.rung());
}

TEST_CASE("wake: a successor that frees what its predecessor had released rings the producer") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    while (producer.push(wide_draft(), Deadline::now()) == Push::ok) continue;
    std::vector<RecordRef> refs;
    Record record;
    {
        auto first = ring.consumer();
        while (first.poll(record) == Poll::record) refs.push_back(record.ref);
        for (std::size_t i = refs.size() - 1; i > 0; i--) first.release(refs[i]);
    }
    auto second = ring.consumer();
    REQUIRE(second.poll(record) == Poll::record);
    REQUIRE(record.ref.position == refs[0].position);
    REQUIRE(second.poll(record) == Poll::empty);
    const RingMap map = map_of(ring);
    const Waiter waiter(map.lane_bell(producer.lane()));
    second.release(refs[0]);
    CHECK(waiter.rung());
    CHECK(producer.push(wide_draft(), Deadline::now()) == Push::ok);
}

TEST_CASE("wake: an interrupted wait ends, be it under way or to come, and the next one waits") {
    const TestRing ring;
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    const RingMap map = map_of(ring);
    const Waiter asleep(map.consumer_bell());
    consumer.interrupt();
    CHECK(asleep.rung());
    Record record;
    CHECK(consumer.wait(record, Deadline::never()) == Poll::timed_out);
    REQUIRE(producer.push(wide_draft(), test::patience()) == Push::ok);
    CHECK(consumer.wait(record, Deadline::never()) == Poll::record);
    consumer.release(record.ref);
    Poll answer = Poll::closed;
    std::thread waits([&] { answer = consumer.wait(record, Deadline::never()); });
    consumer.interrupt();
    waits.join();
    CHECK(answer == Poll::timed_out);
}
