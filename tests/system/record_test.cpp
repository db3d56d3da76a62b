// Records at the edges, through a ring; and the cost of a wait for them.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>

#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

TEST_CASE("edges: a 100 KB id, UTF-8 of every length, NaN, no tokens, a failure") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20});
    auto producer = ring.producer({.checksum = Checksum::xxh3});
    auto consumer = ring.consumer();
    const std::vector<std::int32_t> none;
    const std::vector<std::int32_t> one{-1};
    std::vector<std::string> ids{std::string(100'000, 'x')};
    // "a" + 1, 2, 3 and 4 bytes a character, in every position of a line
    for (const char* character : {"z", "\u00e9", "\u20ac", "\U0001f600"}) {
        for (int count = 1; count < 70; count++) {
            std::string id = "a";
            for (int i = 0; i < count; i++) id += character;
            ids.push_back(id);
        }
    }
    ids.push_back(std::string("nul\0inside", 10));
    for (const std::string& id : ids) {
        for (const auto& tokens : {none, one}) {
            Draft draft(id);
            draft.meta.reward = std::numeric_limits<double>::quiet_NaN();
            draft.meta.status = tokens.empty() ? Status::failed : Status::completed;
            draft.set(Std::token_ids, tokens);
            draft.set_text(Std::messages, id);
            REQUIRE(producer.push(draft, patience()) == Push::ok);
            Record record;
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            CHECK(record.view.instance_id() == id);
            CHECK(record.view.text(Std::messages) == id);
            CHECK(std::ranges::equal(record.view.token_ids(), tokens));
            REQUIRE(record.view.meta().reward.has_value());
            CHECK(*record.view.meta().reward != *record.view.meta().reward);
            consumer.release(record.ref);
        }
    }
    CHECK(consumer.stats().torn == 0);
    CHECK(consumer.stats().records == 2 * ids.size());
}

namespace {

// A kernel tick goes by. Returns a time behind it.
std::int64_t wait_for_tick() {
    const auto tick = [] {
        timespec now{};
        REQUIRE(clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0);
        return now.tv_nsec;
    };
    for (const auto before = tick(); tick() == before;) sched_yield();
    return monotonic_ns();
}

}  // namespace

// Deadlines of groups are counted from there when a trainer has gone.
TEST_CASE("edges: a record says when it was committed, wherever it lies") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    const std::vector<std::int32_t> tokens(2000);
    Draft draft("prompt");
    draft.set(Std::token_ids, tokens);
    Record record;
    SUBCASE("behind a skip") {
        for (const auto laps = producer.stats().laps_full; producer.stats().laps_full < laps + 3;) {
            const std::int64_t before_ns = wait_for_tick();
            REQUIRE(producer.push(draft, Deadline::now()) == Push::ok);
            REQUIRE(consumer.poll(record) == Poll::record);
            CHECK(record.committed_ns >= before_ns);
            consumer.release(record.ref);
        }
    }
    SUBCASE("in a pending batch") {
        REQUIRE(producer.push_later(draft, Deadline::now()) == Push::ok);
        const std::int64_t before_ns = wait_for_tick();
        REQUIRE(producer.push_later(draft, Deadline::now()) == Push::ok);
        producer.flush();
        REQUIRE(consumer.poll(record) == Poll::record);
        REQUIRE(consumer.poll(record) == Poll::record);
        CHECK(record.committed_ns >= before_ns);
    }
}

TEST_CASE("edges: an idle consumer sleeps") {
    const TestRing ring;
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    const auto cpu_ns = [] {
        rusage usage{};
        getrusage(RUSAGE_THREAD, &usage);
        const auto ns = [](const timeval& time) {
            return time.tv_sec * 1'000'000'000 + time.tv_usec * 1'000;
        };
        return ns(usage.ru_utime) + ns(usage.ru_stime);
    };
    Record record;
    const std::int64_t before_ns = cpu_ns();
    REQUIRE(consumer.wait(record, Deadline::after_ms(2000)) == Poll::timed_out);
    const std::int64_t used_ns = cpu_ns() - before_ns;
    MESSAGE("CPU time of 2 s of wait(): " << static_cast<double>(used_ns) / 1e6 << " ms");
    CHECK(used_ns < 100'000'000);  // 5 %
}
