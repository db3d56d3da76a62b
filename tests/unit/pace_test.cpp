// A producer that is ahead of its consumer: how far, and what it does when the lane is full.
#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "ring_map.hpp"
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
