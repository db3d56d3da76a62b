// Numbers that are missing in a producer's sequence count as lost, and those that a dead consumer
// released do not.
#include <doctest/doctest.h>

#include <vector>

#include "ring_map.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

const RingOptions one_lane = {.lanes = 1, .lane_bytes = 64 << 10};

void send_some(Producer& producer, int count) {
    for (int i = 0; i < count; i++) REQUIRE(rollring::test::send(producer) == Push::ok);
}

std::vector<RecordRef> take_some(Consumer& consumer, int count) {
    std::vector<RecordRef> taken;
    Record record;
    for (int i = 0; i < count; i++) {
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        taken.push_back(record.ref);
    }
    return taken;
}

void release(Consumer& consumer, const std::vector<RecordRef>& records) {
    for (const RecordRef& record : records) consumer.release(record);
}

// Polls until the lane's producer, which has closed, is let go.
void retire(Consumer& consumer) {
    const Deadline deadline = patience();
    Record record;
    for (Event event{}; event.kind != Event::Kind::producer_closed;) {
        REQUIRE_FALSE(deadline.passed());
        if (!consumer.next_event(event)) REQUIRE(consumer.poll(record) == Poll::empty);
    }
}

// As if `missing` records were gone in front of the `nth` record of the lane's first lap.
void lose(const TestRing& ring, int nth, std::uint64_t missing) {
    auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    const Geometry& geometry = map->geometry();
    auto data = map->segment().map(geometry.data_offset(0), geometry.lane_bytes, true);
    REQUIRE(data.has_value());
    int index = 0;
    for (std::uint64_t at = 0; at < map->owner(0).tail.load(); index++) {
        auto& frame = data->at<Frame>(at);
        REQUIRE(frame.magic == frame_magic);
        if (index >= nth) frame.sequence += missing;
        at += frame.bytes;
    }
}

// As if the last `missing` records of the lane were gone.
void lose_last(const TestRing& ring, std::uint64_t missing) {
    auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    auto page = map->segment().map(map->geometry().owner_offset(0), page_bytes, true);
    REQUIRE(page.has_value());
    page->at<LaneOwner>(0).records.fetch_add(missing);
}

std::uint64_t lost(const TestRing& ring) {
    const auto stat = stat_ring(ring.name());
    REQUIRE(stat.has_value());
    return stat->lanes.at(0).lost;
}

}  // namespace

TEST_CASE("gap: in front of a producer's first record") {
    for (const bool consumer_first : {false, true}) {
        const TestRing ring(one_lane);
        std::optional<Consumer> consumer;
        if (consumer_first) consumer.emplace(ring.consumer());
        auto producer = ring.producer();
        send_some(producer, 3);
        lose(ring, 0, 2);
        if (!consumer) consumer.emplace(ring.consumer());
        release(*consumer, take_some(*consumer, 3));
        CHECK(consumer->stats().lost == 2);
    }
}

TEST_CASE("gap: at a producer's end") {
    const TestRing ring(one_lane);
    auto consumer = ring.consumer();
    for (const int sent : {3, 0, 2}) {
        const std::uint64_t before = consumer.stats().lost;
        auto producer = ring.producer();
        send_some(producer, sent);
        lose_last(ring, 5);
        release(consumer, take_some(consumer, sent));
        producer.close();
        retire(consumer);
        CHECK(consumer.stats().lost - before == 5);
    }
}

TEST_CASE("gap: behind what a dead consumer held, released out of order or had found lost") {
    const TestRing ring(one_lane);
    auto producer = ring.producer();
    send_some(producer, 6);
    lose(ring, 2, 1);
    {
        auto first = ring.consumer();
        const auto refs = take_some(first, 4);
        first.release(refs[1]);
        first.release(refs[3]);  // the last that was delivered: passed over by the successor
        CHECK(first.stats().lost == 1);
    }
    lose(ring, 4, 3);
    auto second = ring.consumer();
    release(second, take_some(second, 4));
    CHECK(second.stats().redelivered == 2);
    CHECK(second.stats().lost == 3);
    CHECK(second.stats().duplicates == 0);
}

TEST_CASE("gap: at the end of a producer whose last records a dead consumer released") {
    const TestRing ring(one_lane);
    auto producer = ring.producer();
    send_some(producer, 4);
    {
        auto first = ring.consumer();
        const auto refs = take_some(first, 4);
        for (const std::size_t i : {1, 2, 3}) first.release(refs[i]);
    }
    auto second = ring.consumer();
    release(second, take_some(second, 1));
    SUBCASE("nothing is missing") {
        producer.close();
        retire(second);
        CHECK(lost(ring) == 0);
    }
    SUBCASE("two are missing") {
        lose_last(ring, 2);
        producer.close();
        retire(second);
        CHECK(lost(ring) == 2);
    }
}

TEST_CASE("gap: none where consumers come and go") {
    const TestRing ring(one_lane);
    for (int round = 0; round < 3; round++) {
        auto producer = ring.producer();
        std::vector<RecordRef> refs;
        {
            auto first = ring.consumer();
            send_some(producer, 3);
            release(first, take_some(first, 3));  // all gone: its successor cannot know how many
        }
        {
            auto second = ring.consumer();
            send_some(producer, 4);
            refs = take_some(second, 4);
            second.release(refs[0]);
            second.release(refs[2]);
        }
        {
            auto third = ring.consumer();
            send_some(producer, 1);
            refs = take_some(third, 3);
            release(third, refs);
        }
        producer.close();
        auto fourth = ring.consumer();
        retire(fourth);
        auto next = ring.producer();  // a producer whose records stay unread before its end
        send_some(next, 2);
        next.close();
        release(fourth, take_some(fourth, 2));
        retire(fourth);
    }
    CHECK(lost(ring) == 0);
}

TEST_CASE("gap: none where a dead consumer kept records of the producer before") {
    const TestRing ring(one_lane);
    auto first = std::make_optional(ring.consumer());
    {
        auto producer = ring.producer();
        send_some(producer, 3);
        first->release(take_some(*first, 3)[1]);
        producer.close();
        retire(*first);
    }
    auto producer = ring.producer();
    send_some(producer, 3);
    const auto refs = take_some(*first, 2);
    release(*first, refs);
    first.reset();
    auto second = ring.consumer();
    release(second, take_some(second, 3));
    CHECK(lost(ring) == 0);
    lose_last(ring, 1);
    producer.close();
    retire(second);
    CHECK(lost(ring) == 1);
}
