// A producer that is ahead of its consumer: how far, and what it does when the lane is full.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <span>
#include <thread>
#include <vector>

#include "near_bytes.hpp"
#include "ring_map.hpp"
#include "round_up.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

constexpr std::uint64_t kib = 1024;

struct Load {
    std::vector<std::int32_t> tokens = std::vector<std::int32_t>(4000, 7);
    std::uint32_t sent = 0;

    void send(Producer& producer) {
        Draft draft("prompt");
        draft.meta.repetition_id = sent++;
        draft.set(Std::token_ids, tokens);
        REQUIRE(producer.push(draft, patience()) == Push::ok);
    }
};

}  // namespace

TEST_CASE("pace: what is not read yet does not count the dead part of a lap") {
    std::vector<std::byte> bytes(64 * kib);
    std::atomic<std::uint64_t> tail{0};
    std::atomic<std::uint64_t> head{0};
    NativeWriter writer(tail, head, NativePlatform::Frames{bytes.data()}, bytes.size(), 4 * kib);
    const auto write = [&](std::uint64_t count) {
        REQUIRE(writer.reserve(count) == Reserve::ok);
        Frame frame{};
        frame.bytes = count;
        writer.commit(frame);
        writer.show();
    };
    for (int i = 0; i < 8; i++) write(kib);
    CHECK(writer.written_since(0) == 8 * kib);
    head = 6 * kib;
    CHECK(writer.written_since(6 * kib) == 2 * kib);
    write(kib);  // turns back
    REQUIRE(writer.laps().soft == 1);
    CHECK(writer.written_since(6 * kib) == 3 * kib + line_bytes);  // and the skip
    CHECK(writer.written_since(tail.load() - kib) == kib);
    CHECK(writer.written_since(tail.load()) == 0);
    CHECK(writer.written_since(tail.load() + kib) == 0);  // a damaged page of the consumer's
}

TEST_CASE("pace: a lane's part of the cache") {
    const NearBytes near(4096 * kib, 65536 * kib);
    const std::uint64_t all = std::max(4096 * kib, near.of_lane(2, 0) * 2);
    CHECK(near.of_lane(0, 0) == 4096 * kib);  // a consumer that shows no count
    CHECK(near.of_lane(1, 0) == 4096 * kib);
    CHECK(near.of_lane(2, 0) >= 2048 * kib);
    CHECK(near.of_lane(2, 0) <= 4096 * kib);
    CHECK(near.of_lane(64, 0) < near.of_lane(8, 0));
    CHECK(near.of_lane(64, 0) * 64 >= all);
    CHECK(near.of_lane(64, 1600 * kib) == 2000 * kib);   // room for the next record
    CHECK(near.of_lane(64, 32768 * kib) == 4096 * kib);  // never more than is asked for
    CHECK(near.of_lane(0xffffffff, 0) == 64 * kib);      // an overwritten count
    CHECK(near.of_lane(64, 100) % line_bytes == 0);
    const NearBytes never(65536 * kib, 65536 * kib);  // no lane turns back early
    CHECK(never.of_lane(64, 0) == 65536 * kib);
}

TEST_CASE("pace: a lane turns back behind other bytes from now on") {
    std::vector<std::byte> bytes(64 * kib);
    std::atomic<std::uint64_t> tail{0};
    std::atomic<std::uint64_t> head{0};
    NativeWriter writer(tail, head, NativePlatform::Frames{bytes.data()}, bytes.size(), 32 * kib);
    const auto laps_of = [&](std::uint64_t records) {
        const std::uint64_t before = writer.laps().soft;
        for (std::uint64_t i = 0; i < records; i++) {
            REQUIRE(writer.reserve(kib) == Reserve::ok);
            Frame frame{};
            frame.bytes = kib;
            writer.commit(frame);
            writer.show();
            head = tail.load();  // read and released at once
        }
        return writer.laps().soft - before;
    };
    CHECK(laps_of(128) <= 4);
    writer.set_soft(4 * kib);
    CHECK(laps_of(128) >= 20);
    writer.set_soft(32 * kib);
    CHECK(laps_of(128) <= 5);
    CHECK(writer.laps().full == 0);
    CHECK(writer.laps().jumps == 0);
}

namespace {

// Producers that send by turns to a consumer that keeps up.
void send_by_turns(std::span<Producer> producers, Consumer& consumer, std::uint64_t bytes) {
    Load load;
    Record record;
    const auto sent = [&] { return producers[0].stats().bytes; };
    for (const std::uint64_t end = sent() + bytes; sent() < end;) {
        for (Producer& producer : producers) {
            load.send(producer);
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            consumer.release(record.ref);
        }
    }
}

}  // namespace

TEST_CASE("pace: lanes that are busy at once divide the cache") {
    const long cache = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
    const std::uint64_t soft =
        round_up(std::max<std::uint64_t>(1024 * kib, cache / 16), 4 * kib);  // of all lanes
    const TestRing ring({.lanes = 2, .lane_bytes = 2 * soft, .soft_bytes = soft, .spill_bytes = 0});
    auto consumer = ring.consumer();
    std::vector<Producer> producers;
    producers.push_back(ring.producer());
    producers.push_back(ring.producer());
    const auto shown = [&] {
        return peek(RingMap::attach(ring.name(), Deadline::now())->control().busy_lanes);
    };
    CHECK(shown() == 0);
    send_by_turns({producers.data(), 1}, consumer, 3 * soft + 8192 * kib);
    CHECK(shown() == 1);
    const std::uint64_t alone = producers[0].stats().laps_soft;
    send_by_turns(producers, consumer, 3 * soft + 8192 * kib);
    CHECK(shown() == 2);
    const std::uint64_t together = producers[0].stats().laps_soft - alone;
    CHECK(together > alone + alone / 2);
    CHECK(producers[0].stats().laps_full == 0);
}

TEST_CASE("pace: a lane that is read at once never jumps") {
    std::vector<std::byte> bytes(64 * kib);
    std::atomic<std::uint64_t> tail{0};
    std::atomic<std::uint64_t> head{0};
    NativeWriter writer(tail, head, NativePlatform::Frames{bytes.data()}, bytes.size(), 4 * kib);
    for (int i = 0; i < 128; i++) {
        REQUIRE(writer.reserve(kib) == Reserve::ok);
        Frame frame{};
        frame.bytes = kib;
        writer.commit(frame);
        writer.show();
        head = tail.load();
    }
    CHECK(writer.laps().soft >= 20);
    CHECK(writer.laps().full == 0);
    CHECK(writer.laps().jumps == 0);
}

TEST_CASE("pace: where nobody reads, all of the lane is there, and it is asked seldom") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4096 * kib, .soft_bytes = 64 * kib});
    auto producer = ring.producer();
    Load load;
    load.send(producer);
    const std::uint64_t fit = 4096 * kib / producer.stats().bytes;
    while (load.sent < fit) load.send(producer);
    CHECK(producer.stats().waits == 0);
    CHECK(producer.stats().paces > 0);
    CHECK(producer.stats().paces <= 7);  // after 512 KiB, 640, 768, 1024, ...
}

TEST_CASE("pace: a predecessor's backlog that nobody releases is asked for seldom, too") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4096 * kib, .soft_bytes = 64 * kib});
    auto consumer = ring.consumer();
    Load load;
    {
        auto gone = ring.producer();
        while (gone.stats().bytes < 1024 * kib) load.send(gone);
    }
    Record record;
    while (consumer.poll(record) == Poll::record) continue;  // all held
    rollring::test::await_close(consumer);
    auto producer = ring.producer();
    while (producer.stats().bytes < 2048 * kib) load.send(producer);
    CHECK(producer.stats().records > 100);
    CHECK(producer.stats().paces > 0);
    CHECK(producer.stats().paces <= 6);
}

TEST_CASE("pace: a consumer that keeps up is not waited for") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4096 * kib, .soft_bytes = 64 * kib});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    Load load;
    Record record;
    for (int i = 0; i < 1000; i++) {
        load.send(producer);
        REQUIRE(consumer.poll(record) == Poll::record);
        consumer.release(record.ref);
    }
    CHECK(producer.stats().paces == 0);
    CHECK(producer.stats().waits == 0);
}

TEST_CASE("pace: nor one that has read all and holds it") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4096 * kib, .soft_bytes = 64 * kib});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    Load load;
    Record record;
    while (producer.stats().bytes < 3072 * kib) {
        load.send(producer);
        REQUIRE(consumer.poll(record) == Poll::record);
    }
    CHECK(producer.stats().paces == 0);
    CHECK(producer.stats().waits == 0);
}

TEST_CASE("pace: a call without patience waits for nobody") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1024 * kib, .soft_bytes = 64 * kib});
    auto producer = ring.producer();
    const std::vector<std::int32_t> tokens(4000, 7);
    Draft draft("prompt");
    draft.set(Std::token_ids, tokens);
    while (producer.push(draft, Deadline::now()) == Push::ok) continue;
    CHECK(producer.stats().records > 50);
    CHECK(producer.stats().paces == 0);
}

// A producer waits for more room than it needs, but takes less when no more will become free.
TEST_CASE("pace: the room of one record is enough for a producer that waits") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4096 * kib, .soft_bytes = 4096 * kib});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    Load load;
    load.send(producer);
    const std::uint64_t fit = 4096 * kib / producer.stats().bytes;
    while (load.sent < fit) load.send(producer);
    Record record;
    REQUIRE(consumer.poll(record) == Poll::record);
    consumer.release(record.ref);  // a turn back to the start takes a line more than the record
    for (std::uint64_t i = 1; i < 20; i++) {
        std::thread waiter([&] { load.send(producer); });
        while (stat_ring(ring.name())->lanes.at(0).waits < i) std::this_thread::yield();
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        CHECK(record.view.meta().repetition_id == i);
        consumer.release(record.ref);
        waiter.join();
    }
    CHECK(producer.stats().waits == 19);
    CHECK(consumer.stats().released == 20);
}
