// A producer's damage in its lane must not touch the one that has the lane after it.

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <vector>

#include "ring_map.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::await_close;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::TestRing;

namespace {

constexpr int good_records = 200;  // a producer looks at every 64th whether it is in quarantine

// The memory that the holder of lane 0 may write.
class Lane {
  public:
    explicit Lane(const TestRing& ring) {
        auto segment = Segment::attach(ring.name(), Deadline::now());
        REQUIRE(segment.has_value());
        const Geometry& geometry = segment->geometry();
        auto page = segment->map(geometry.owner_offset(0), page_bytes, true);
        auto data = segment->map(geometry.data_offset(0), geometry.lane_bytes, true);
        REQUIRE(page.has_value());
        REQUIRE(data.has_value());
        page_.emplace(std::move(*page));
        data_.emplace(std::move(*data));
    }
    [[nodiscard]] LaneOwner& owner() { return page_->at<LaneOwner>(0); }
    [[nodiscard]] Frame& frame(std::uint64_t position) {
        return data_->at<Frame>(position % data_->bytes());
    }

  private:
    std::optional<Mapping> page_;
    std::optional<Mapping> data_;
};

// All records of a good producer arrive, and it is not in quarantine.
void check_good(Producer& good, Consumer& consumer) {
    Record record;
    const ConsumerStats before = consumer.stats();
    for (int i = 0; i < good_records; i++) {
        const Push got = send(good);
        REQUIRE_MESSAGE(got == Push::ok, good.problem());
        while (consumer.wait(record, patience()) == Poll::record && record.redelivered) {
            consumer.release(record.ref);
        }
        REQUIRE(!record.redelivered);
        CHECK(record.sequence == static_cast<std::uint64_t>(i));
        consumer.release(record.ref);
    }
    CHECK(consumer.stats().quarantines == 0);
    CHECK(consumer.stats().duplicates == before.duplicates);
    CHECK(consumer.stats().lost == before.lost);
}

}  // namespace

TEST_CASE("damage in records that a dead producer left unreleased costs only those") {
    using Harm = std::function<void(Frame&)>;
    const std::vector<Harm> harms = {
        [](Frame& frame) { frame.magic = 0; },
        [](Frame& frame) { frame.bytes = 4096; },  // over the next frames
        [](Frame& frame) { frame.bytes += 64; },
        [](Frame& frame) { frame.epoch = 99; },
        [](Frame& frame) {  // the next producer's, it says
            frame.epoch++;
            frame.sequence = 1'000'000;
        },
        [](Frame& frame) { frame.lane = 7; },
    };
    for (std::size_t which = 0; which < harms.size(); which++) {
        for (const bool good_is_first : {false, true}) {
            CAPTURE(which);
            CAPTURE(good_is_first);
            const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
            Lane lane(ring);
            {
                auto consumer = ring.consumer();
                auto bad = ring.producer();
                Record record;
                for (int i = 0; i < 4; i++) {
                    REQUIRE(send(bad) == Push::ok);
                    REQUIRE(consumer.wait(record, patience()) == Poll::record);
                    if (i == 1) harms[which](lane.frame(record.ref.position));
                    if (i == 3) consumer.release(record.ref);
                }
                bad.close();
                await_close(consumer);
            }
            std::optional<Producer> good;
            if (good_is_first) good = ring.producer();
            auto consumer = ring.consumer();
            Record record;
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            CHECK(record.redelivered);
            CHECK(record.sequence == 0);
            consumer.release(record.ref);
            if (!good_is_first) {
                // A frame with only a longer size looks whole, and the one after it does not.
                while (consumer.wait(record, Deadline::after_ms(10)) == Poll::record) {
                    consumer.release(record.ref);
                }
                good = ring.producer();
            }
            check_good(*good, consumer);
            CHECK(consumer.stats().torn == 1);
            int told = 0;
            for (Event event; consumer.next_event(event);) {
                if (event.kind != Event::Kind::torn) continue;
                told++;
                CHECK(event.producer.empty());
                CHECK(event.epoch == 0);
            }
            CHECK(told == 1);
        }
    }
}

TEST_CASE("damage is passed over when nothing before it is held, whoever has died meanwhile") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    Lane lane(ring);
    {
        auto consumer = ring.consumer();
        auto bad = ring.producer();
        Record record;
        for (int i = 0; i < 4; i++) {
            REQUIRE(send(bad) == Push::ok);
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            if (i == 1) lane.frame(record.ref.position).magic = 0;
            if (i == 2) consumer.release(record.ref);  // its bits lie in the skipped bytes
        }
        bad.close();
        await_close(consumer);
    }
    auto good = ring.producer();
    for (int i = 0; i < 3; i++) {  // each holds the first record, and dies
        auto consumer = ring.consumer();
        REQUIRE(send(good) == Push::ok);
        Record record;
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        CHECK(record.sequence == 0);
        CHECK(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    }
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    consumer.release(record.ref);
    // Many laps: no bit of the skipped bytes may be left.
    for (std::uint64_t i = 0; i < 2000; i++) {
        if (i >= 3) REQUIRE(send(good) == Push::ok);
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        REQUIRE(record.sequence == i);
        CHECK(!record.redelivered);
        consumer.release(record.ref);
    }
}

TEST_CASE("what one consumer takes for damage and its successor does not stays released") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    Lane lane(ring);
    Record record;
    {
        auto consumer = ring.consumer();
        auto first = ring.producer();
        for (int i = 0; i < 4; i++) {
            REQUIRE(send(first) == Push::ok);
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            if (i == 1) lane.frame(record.ref.position).epoch = 2;  // so that the next is of old
            if (i % 2 == 1) consumer.release(record.ref);
        }
        first.close();
        await_close(consumer);
        ring.producer().close();  // epoch 2
        await_close(consumer);
    }
    {
        auto consumer = ring.consumer();
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        REQUIRE(record.sequence == 0);
        const RecordRef held = record.ref;
        CHECK(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
        consumer.release(held);
    }
    auto consumer = ring.consumer();
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.sequence == 2);
    CHECK(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
}

TEST_CASE("a producer that calls itself closed and goes on writing harms nobody after it") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    Lane lane(ring);
    std::optional<Consumer> consumer = ring.consumer();
    {
        auto bad = ring.producer();
        REQUIRE(send(bad) == Push::ok);
        Record record;
        REQUIRE(consumer->wait(record, patience()) == Poll::record);
        consumer->release(record.ref);
        lane.owner().state = static_cast<std::uint32_t>(OwnerState::closed);
        await_close(*consumer);
        for (int i = 0; i < 10; i++) REQUIRE(send(bad) == Push::ok);
        lane.owner().tail += 64;
    }
    SUBCASE("the same consumer") {}
    SUBCASE("another consumer") {
        consumer.reset();
        consumer = ring.consumer();
    }
    auto good = ring.producer();
    check_good(good, *consumer);
}

TEST_CASE("a tail that moved back to where a successor reads does not end the lane there") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    Lane lane(ring);
    auto bad = ring.producer();
    Record record;
    std::uint64_t second = 0;
    {
        auto consumer = ring.consumer();
        for (int i = 0; i < 3; i++) {
            REQUIRE(send(bad) == Push::ok);
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            if (i == 1) second = record.ref.position;
        }
    }
    bad.close();
    lane.owner().tail = second;
    auto consumer = ring.consumer();
    for (std::uint64_t i = 0; i < 3; i++) {
        REQUIRE(consumer.wait(record, Deadline::after_ms(1'000)) == Poll::record);
        CHECK(record.sequence == i);
        consumer.release(record.ref);
        // Asks for a lane, so that the consumer looks around with its next poll.
        CHECK(!Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(3)})
                   .has_value());
    }
}

TEST_CASE("a producer that writes over its epoch before it is seen is not read from") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    Lane lane(ring);
    {
        auto consumer = ring.consumer();
        auto first = ring.producer();
        Record record;
        for (int i = 0; i < 3; i++) {
            REQUIRE(send(first) == Push::ok);
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            if (i != 0) consumer.release(record.ref);  // a successor passes over these two at once
        }
        first.close();
        await_close(consumer);
    }
    auto bad = ring.producer();
    for (int i = 0; i < 3; i++) REQUIRE(send(bad) == Push::ok);
    lane.owner().epoch = 77;
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.redelivered);
    const RecordRef held = record.ref;
    CHECK(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    consumer.release(held);
    bad.close();
    auto good = ring.producer();
    check_good(good, consumer);
}

TEST_CASE("a producer that writes over its epoch harms nobody after it") {
    for (const std::uint32_t epoch : {0U, 1U, 3U, 77U, 0xffffffffU}) {
        for (const bool seen : {false, true}) {
            CAPTURE(epoch);
            CAPTURE(seen);
            const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
            Lane lane(ring);
            std::optional<Consumer> consumer = ring.consumer();
            ring.producer().close();
            await_close(*consumer);
            auto bad = ring.producer();  // epoch 2
            Record record;
            if (seen) {
                REQUIRE(send(bad) == Push::ok);
                REQUIRE(consumer->wait(record, patience()) == Poll::record);
                consumer->release(record.ref);
            } else {
                consumer.reset();
            }
            for (int i = 0; i < 3; i++) REQUIRE(send(bad) == Push::ok);
            lane.owner().epoch = epoch;
            bad.close();
            if (!consumer) consumer = ring.consumer();
            auto good = Producer::open(ring.name(), {.attach_timeout = {}});
            for (const Deadline deadline = patience(); !good && !deadline.passed();) {
                if (consumer->poll(record) == Poll::record) consumer->release(record.ref);
                good = Producer::open(ring.name(), {.attach_timeout = {}});
            }
            REQUIRE(good.has_value());
            check_good(*good, *consumer);
        }
    }
}
