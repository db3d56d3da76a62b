#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "ring_map.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::TestRing;

namespace {

void scribble_tail(const TestRing& ring, std::uint32_t lane, std::uint64_t tail) {
    auto segment = Segment::attach(ring.name(), Deadline::now());
    REQUIRE(segment.has_value());
    auto page = segment->map(segment->geometry().owner_offset(lane), page_bytes, true);
    REQUIRE(page.has_value());
    page->at<LaneOwner>(0).tail.store(tail);
}

void retire_all(Consumer& consumer) {
    Record record;
    while (consumer.producers_active() > 0) {
        REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    }
}

}  // namespace

TEST_CASE("quarantine: a lane given up as damaged works again for the next consumer and producer") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    {
        auto consumer = ring.consumer();
        auto bad = ring.producer();
        REQUIRE(send(bad) == Push::ok);
        Record record;
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        consumer.release(record.ref);
        scribble_tail(ring, 0, 12345);
        REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
        CHECK(consumer.stats().quarantines == 1);
        bad.close();
        scribble_tail(ring, 0, 12345);
        retire_all(consumer);
    }
    auto consumer = ring.consumer();
    auto good = ring.producer();
    REQUIRE(send(good) == Push::ok);
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.sequence == 0);
    consumer.release(record.ref);
    CHECK(consumer.stats().quarantines == 0);
}

TEST_CASE("quarantine: what was delivered and not released comes again after a consumer's death") {
    const auto ends_first = [](const Record& third) { return third.ref.position / 2; };
    const std::vector<std::function<std::uint64_t(const Record&)>> tails = {
        [](const Record&) { return 12345; },
        [](const Record&) { return std::uint64_t{1} << 40; },
        [](const Record&) { return 0; },
        [](const Record&) { return 64; },
        ends_first,
    };
    for (std::size_t which = 0; which < tails.size(); which++) {
        CAPTURE(which);
        const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
        auto bad = ring.producer();
        for (int i = 0; i < 3; i++) REQUIRE(send(bad) == Push::ok);
        Record record;
        std::uint64_t tail = 0;
        {
            auto consumer = ring.consumer();
            for (int i = 0; i < 3; i++) REQUIRE(consumer.wait(record, patience()) == Poll::record);
            tail = tails[which](record);
            scribble_tail(ring, 0, tail);
            REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
            REQUIRE(consumer.stats().quarantines == 1);
        }
        auto consumer = ring.consumer();
        for (int i = 0; i < 3; i++) {
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            CHECK(record.redelivered);
            consumer.release(record.ref);
        }
        CHECK(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
        CHECK(consumer.stats().quarantines == 1);
        bad.close();
        scribble_tail(ring, 0, tail);
        retire_all(consumer);
        auto good = ring.producer();
        REQUIRE(send(good) == Push::ok);
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        consumer.release(record.ref);
    }
}

TEST_CASE("quarantine: a dead producer that had called its epoch 0 keeps no lane") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    {
        auto consumer = ring.consumer();
        ring.producer().close();
        rollring::test::await_close(consumer);
    }
    auto bad = ring.producer();
    REQUIRE(send(bad) == Push::ok);
    scribble_tail(ring, 0, 12345);
    {
        auto segment = Segment::attach(ring.name(), Deadline::now());
        REQUIRE(segment.has_value());
        auto page = segment->map(segment->geometry().owner_offset(0), page_bytes, true);
        REQUIRE(page.has_value());
        page->at<LaneOwner>(0).epoch = 0;
    }
    bad.close();
    auto consumer = ring.consumer();
    Record record;
    auto good = Producer::open(ring.name(), {.attach_timeout = {}});
    for (const Deadline deadline = patience(); !good && !deadline.passed();) {
        REQUIRE(consumer.poll(record) == Poll::empty);
        good = Producer::open(ring.name(), {.attach_timeout = {}});
    }
    REQUIRE(good.has_value());
    REQUIRE(send(*good) == Push::ok);
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    consumer.release(record.ref);
    CHECK(consumer.stats().lost == 0);
}

TEST_CASE("quarantine: a damaged journal makes nobody write outside the lane") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    REQUIRE(send(producer) == Push::ok);
    auto segment = Segment::attach(ring.name(), Deadline::now());
    REQUIRE(segment.has_value());
    const Geometry& geometry = segment->geometry();
    auto pages = segment->map(geometry.reader_offset(),
                              geometry.owners_offset() - geometry.reader_offset(), true);
    REQUIRE(pages.has_value());
    auto& entry = pages->at<JournalEntry>(geometry.journal_offset() - geometry.reader_offset());
    const std::uint64_t lines = std::uint64_t{1} << 26;
    for (const JournalEntry& bad :
         {JournalEntry{0 - lines * 64, 0, static_cast<std::uint32_t>(lines)}, JournalEntry{0, 0, 0},
          JournalEntry{1, 0, 1}, JournalEntry{0, 0, 1 << 20}, JournalEntry{0, 9, 1}}) {
        entry = bad;
        pages->at<ReaderControl>(0).journal_count.store(1);
        auto consumer = ring.consumer();
        Record record;
        CHECK(consumer.wait(record, patience()) == Poll::record);
    }
}

TEST_CASE("quarantine: its producer learns of it with room left in the lane") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20});
    auto consumer = ring.consumer();
    auto bad = ring.producer();
    REQUIRE(send(bad) == Push::ok);
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    consumer.release(record.ref);
    scribble_tail(ring, 0, 12345);
    REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    REQUIRE(consumer.stats().quarantines == 1);
    Push got = Push::ok;
    int sent = 0;
    for (; sent < 200 && got == Push::ok; sent++) got = send(bad);
    CHECK(got == Push::closed);
    CHECK(sent <= 65);
    CHECK(bad.problem().find("quarantined") != std::string::npos);
    CHECK(bad.stats().waits == 0);
    bad.close();
    retire_all(consumer);
    auto good = ring.producer();
    CHECK(send(good) == Push::ok);
}
