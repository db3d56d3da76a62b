// A bound on the records of a ring holds for all producers, and unsent records take no place.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ring_map.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::TestRing;

namespace {

constexpr std::uint64_t most = 3;

void take(Consumer& consumer) {
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(consumer.release(record.ref));
}

Push try_send(Producer& producer) {
    return send(producer, {}, Deadline::now());
}

}  // namespace

TEST_CASE("bound: so many records and no more, whoever sends and takes them") {
    const TestRing ring;
    auto first = ring.producer({.max_records = most});
    auto second = ring.producer({.max_records = most});
    CHECK(try_send(first) == Push::ok);
    CHECK(try_send(second) == Push::ok);
    CHECK(try_send(first) == Push::ok);
    CHECK(try_send(second) == Push::timed_out);
    CHECK(second.problem().find("the limit is 3") != std::string::npos);
    CHECK(try_send(first) == Push::timed_out);
    auto consumer = ring.consumer();
    for (int round = 0; round < 100; round++) {
        take(consumer);
        CHECK(try_send(round % 3 == 0 ? first : second) == Push::ok);
        CHECK(try_send(second) == Push::timed_out);
        CHECK(try_send(first) == Push::timed_out);
    }
    // A record that is read and not released counts.
    Record record;
    REQUIRE(consumer.poll(record) == Poll::record);
    CHECK(try_send(first) == Push::timed_out);
    const RecordRef refs[] = {record.ref};
    CHECK(consumer.release_all(refs, -1).has_value());
    CHECK(try_send(first) == Push::ok);
}

TEST_CASE("bound: what earlier producers of a lane have sent counts until it is released") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20});
    auto consumer = ring.consumer();
    std::vector<RecordRef> held;
    const auto read_all = [&] {
        Record record;
        while (consumer.wait(record, Deadline::after_ms(20)) == Poll::record) {
            held.push_back(record.ref);
        }
    };
    for (int generation = 0; generation < 3; generation++) {
        auto producer = ring.producer({.max_records = most});
        while (try_send(producer) == Push::ok) read_all();
        producer.close();
        read_all();
        CHECK(held.size() == most);
    }
    // Each one that is released makes a place, also for the next generation.
    for (std::uint64_t free = 1; free <= most; free++) {
        for (std::uint64_t i = 0; i < free; i++) {
            CHECK(consumer.release(held.back()));
            held.pop_back();
        }
        auto producer = ring.producer({.max_records = most});
        std::uint64_t sent = 0;
        while (try_send(producer) == Push::ok) sent++;
        CHECK(sent == free);
        producer.close();
        read_all();
        CHECK(held.size() == most);
    }
}

TEST_CASE("bound: a place that is not used goes to others when its producer closes or dies") {
    const TestRing ring;
    Draft shape("prompt");
    shape.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {5, 0, 0, 0}, 1, nullptr});
    auto other = ring.producer({.max_records = 1});
    std::optional<Producer> producer(ring.producer({.max_records = 1}));
    Reservation room;
    REQUIRE(producer->reserve(shape, Deadline::now(), room) == Push::ok);
    CHECK(try_send(other) == Push::timed_out);
    room = Reservation();
    CHECK(try_send(other) == Push::timed_out);
    // Its next record has the place.
    CHECK(try_send(*producer) == Push::ok);
    auto consumer = ring.consumer();
    take(consumer);
    REQUIRE(producer->reserve(shape, Deadline::now(), room) == Push::ok);
    producer->close();
    CHECK(try_send(other) == Push::ok);
    take(consumer);
    CHECK(try_send(other) == Push::ok);
}

TEST_CASE("bound: who waits for a place is woken by a release, and by a producer that closes") {
    const TestRing ring;
    auto waits = ring.producer({.max_records = 1});
    std::optional<Producer> other(ring.producer({.max_records = 1}));
    auto consumer = ring.consumer();
    REQUIRE(send(*other) == Push::ok);
    std::atomic<int> sent = 0;
    std::thread waiter([&] {
        for (; sent < 2; sent++) {
            if (send(waits) != Push::ok) return;
        }
    });
    while (waits.stats().waits == 0) std::this_thread::yield();
    take(consumer);
    take(consumer);
    take(consumer);
    waiter.join();
    CHECK(sent == 2);
}

TEST_CASE("bound: a damaged lane holds nobody up") {
    const TestRing ring;
    auto damaged = ring.producer({.max_records = 1});
    auto other = ring.producer({.max_records = 1});
    REQUIRE(try_send(damaged) == Push::ok);
    REQUIRE(try_send(other) == Push::timed_out);
    const auto map = RingMap::attach(ring.name(), patience());
    REQUIRE(map.has_value());
    const auto page =
        map->segment().map(map->geometry().owner_offset(damaged.lane()), page_bytes, true);
    REQUIRE(page.has_value());
    page->at<LaneOwner>(0).tail = 8192;  // no frame lies there
    auto consumer = ring.consumer();
    Record record;
    Event event;
    for (bool told = false; !told;) {
        if (consumer.wait(record, Deadline::after_ms(1)) == Poll::record) {
            CHECK(consumer.release(record.ref));
        }
        while (consumer.next_event(event)) told |= event.kind == Event::Kind::quarantined;
    }
    CHECK(try_send(other) == Push::ok);
}

TEST_CASE("bound: producers that come and go, and contend, never pass it") {
    const TestRing ring;
    constexpr int each = 300;
    auto consumer = ring.consumer();
    std::vector<std::thread> threads;
    threads.reserve(3);
    for (int i = 0; i < 3; i++) {
        threads.emplace_back([&] {
            for (int part = 0; part < 3; part++) {
                auto producer = ring.producer({.max_records = most});
                for (int k = 0; k < each; k++) {
                    if (send(producer) != Push::ok) return;
                }
            }
        });
    }
    for (int i = 0; i < 3 * 3 * each; i++) {
        std::uint64_t there = 0;
        const auto stat = stat_ring(ring.name());
        REQUIRE(stat.has_value());
        for (const LaneStat& lane : stat->lanes) there += lane.depth_records;
        CHECK(there <= most);
        take(consumer);
    }
    for (std::thread& thread : threads) thread.join();
}
