// A lane that is kept for its producer's successor, which learns from the lane which records were
// sent.
#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <csignal>

#include "ring_map.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::collect;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::start_child;
using rollring::test::TestRing;

namespace {

const ProducerOptions kept = {.attach_timeout = std::chrono::seconds(60), .keep_for = "node-1"};
const ProducerOptions at_once = {.attach_timeout = std::chrono::nanoseconds(0)};

struct Told {
    std::uint32_t lane;
    std::array<std::uint64_t, 4> positions;  // of two records that are visible, and two others
};

// The report of a producer that is killed after two records, with two more that it has not shown.
Told killed(const std::string& ring) {
    std::array<int, 2> ends{};
    REQUIRE(pipe(ends.data()) == 0);
    const pid_t child = start_child([&] {
        auto opened = Producer::open(ring, kept);
        if (!opened) return 1;
        Told told{opened->lane(), {}};
        Draft draft("prompt");
        const std::vector<std::int32_t> tokens(5, 1);
        draft.set(Std::token_ids, tokens);
        for (std::size_t number = 0; number < 4; number++) {
            draft.meta.repetition_id = static_cast<std::uint32_t>(number);
            if (opened->push_later(draft, patience()) != Push::ok) return 1;
            told.positions[number] = opened->last().position;
            if (number == 1) opened->flush();
        }
        if (write(ends[1], &told, sizeof told) != sizeof told) return 1;
        return raise(SIGKILL);
    });
    Told told{};
    close(ends[1]);
    REQUIRE(read(ends[0], &told, sizeof told) == sizeof told);
    close(ends[0]);
    static_cast<void>(collect(child));
    return told;
}

std::uint64_t read_all(Consumer& consumer) {
    Record record;
    std::uint64_t records = 0;
    while (consumer.wait(record, Deadline::after_ms(50)) == Poll::record) {
        CHECK(consumer.release(record.ref));
        records++;
    }
    return records;
}

}  // namespace

TEST_CASE("kept lane: only the successor gets it, and learns which records were sent") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    const Told told = killed(ring.name());
    auto consumer = ring.consumer();
    CHECK(read_all(consumer) == 2);
    const auto other = ring.producer();
    CHECK(other.lane() != told.lane);
    const auto none = Producer::open(ring.name(), at_once);
    REQUIRE(!none.has_value());
    CHECK(none.error().code == Errc::no_free_lane);
    CHECK(none.error().to_string().find("1 are reserved") != std::string::npos);

    auto successor = ring.producer(kept);
    CHECK(successor.lane() == told.lane);
    CHECK(successor.last().lines == 0);
    const std::uint64_t sent = successor.last().position;
    CHECK(told.positions[1] < sent);
    CHECK(told.positions[2] >= sent);
    CHECK(send(successor) == Push::ok);
    CHECK(successor.last().position >= sent);
    CHECK(read_all(consumer) == 1);
    successor.close();
    CHECK(read_all(consumer) == 0);
    CHECK(ring.producer({.attach_timeout = std::chrono::seconds(60)}).lane() == told.lane);
}

TEST_CASE("kept lane: what somebody has written over it keeps it from nobody") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    {
        auto map = RingMap::attach(ring.name(), Deadline::now());
        REQUIRE(map.has_value());
        auto page = map->segment().map(map->geometry().owner_offset(0), page_bytes, true);
        REQUIRE(page.has_value());
        page->at<LaneOwner>(0).kept_for = 12345;
        page->at<LaneOwner>(0).kept_check = 67890;
    }
    CHECK(ring.producer().lane() == 0);
}

TEST_CASE("kept lane: it waits until the consumer has read what was sent") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    const Told told = killed(ring.name());
    ProducerOptions now = kept;
    now.attach_timeout = std::chrono::nanoseconds(0);
    // The other lane is free, and is not taken instead.
    CHECK(!Producer::open(ring.name(), now).has_value());
    auto consumer = ring.consumer();
    CHECK(read_all(consumer) == 2);
    CHECK(ring.producer(kept).lane() == told.lane);
}
