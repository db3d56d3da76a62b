// Goal: a group is decided at its deadline, under any number of trainers in between and with any
// late member; and never before all records have been read that could complete it.
#include <doctest/doctest.h>

#include <thread>

#include "machine_bench.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::Bench;
using rollring::test::freshest_pair;
using rollring::test::one_second;
using rollring::test::open_stash;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::TestRing;

namespace {

Arrival member(std::uint64_t prompt, std::uint32_t repetition, std::uint32_t attempt = 0) {
    Arrival arrival;
    arrival.key = {prompt, 0};
    arrival.repetition_id = repetition;
    arrival.attempt = attempt;
    return arrival;
}

// One that a predecessor has seen.
Arrival seen(std::uint64_t prompt, std::uint32_t repetition, std::int64_t sent_ns) {
    Arrival arrival = member(prompt, repetition);
    arrival.sent_ns = sent_ns;
    return arrival;
}

const StashOptions pairs_in_time{.group_size = 2,
                                 .deadline = std::chrono::nanoseconds(10 * one_second),
                                 .min_size = 1,
                                 .batch = BatchTarget::groups(1)};

}  // namespace

TEST_CASE("deadlines: what a predecessor had is as old as it was, in whatever order it comes") {
    Bench bench(pairs_in_time);
    bench.now_ns = 100 * one_second;
    for (const std::int64_t age : {3, 9, 1, 7, 5, 8, 2}) {
        bench.send(seen(age, 0, bench.now_ns - age * one_second));
    }
    bench.send(member(0, 0));
    const auto waiting = bench.stash.oldest_open(10);
    REQUIRE(waiting.size() == 8);
    CHECK(bench.stash.group(waiting.front()).opened_ns == bench.now_ns - 9 * one_second);
    CHECK(bench.stash.group(waiting.back()).opened_ns == bench.now_ns);
    for (const std::int64_t age : {9, 8, 7, 5, 3, 2, 1, 0}) {
        bench.now_ns = 110 * one_second - age * one_second;
        bench.stash.tick(bench.now_ns - 1);
        CHECK(!bench.cut());
        bench.stash.tick(bench.now_ns);
        REQUIRE(bench.cut());
        CHECK(bench.batch.groups[0].key.low == age);
        bench.stash.ack(bench.batch.id, bench.now_ns);
    }
}

TEST_CASE("deadlines: a group is as old as the oldest of its records that comes again") {
    Bench bench(pairs_in_time);
    bench.now_ns = 100 * one_second;
    bench.send(seen(1, 0, 99 * one_second));
    bench.send(member(2, 0));
    Arrival older = seen(1, 1, 95 * one_second);
    older.last_subsequence = false;
    bench.send(older);
    bench.stash.tick(105 * one_second);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].key.low == 1);
    CHECK(!bench.cut());
}

TEST_CASE("deadlines: times that cannot be are not believed") {
    Bench bench(pairs_in_time);
    bench.now_ns = 100 * one_second;
    bench.send(seen(1, 0, std::numeric_limits<std::int64_t>::max()));
    bench.send(seen(2, 0, std::numeric_limits<std::int64_t>::min()));
    const auto waiting = bench.stash.oldest_open(10);
    REQUIRE(waiting.size() == 2);
    CHECK(bench.stash.group(waiting[0]).opened_ns == 0);
    CHECK(bench.stash.group(waiting[1]).opened_ns == bench.now_ns);
    bench.stash.tick(bench.now_ns);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].key.low == 2);
    bench.stash.tick(110 * one_second);
    CHECK(bench.cut());
}

TEST_CASE("deadlines: a thousand groups in the wrong order") {
    StashOptions options = pairs_in_time;
    options.order = Order::freshest;  // a window of the oldest is one of those that came first
    Bench bench(options);
    bench.now_ns = 2000 * one_second;
    for (std::int64_t age = 0; age < 1000; age++) {  // each is older than all before
        bench.send(seen(age, 0, bench.now_ns - age * one_second / 1000));
    }
    for (std::int64_t age = 999; age >= 0; age--) {
        bench.stash.tick(2010 * one_second - age * one_second / 1000);
        REQUIRE(bench.cut());
        REQUIRE(bench.batch.groups[0].key.low == age);
        bench.stash.ack(bench.batch.id, bench.now_ns);
    }
}

TEST_CASE("deadlines: a retry that comes before its group's end was noticed gets a new one") {
    Bench bench(pairs_in_time);
    bench.send(member(1, 0));
    bench.send(member(1, 1));  // complete
    bench.now_ns += 11 * one_second;
    bench.send(member(1, 1, 1));  // complete again
    Arrival begun = member(1, 1, 2);
    begun.last_subsequence = false;
    bench.send(begun);
    bench.stash.tick(bench.now_ns);
    CHECK(!bench.cut());
    bench.now_ns += 9 * one_second;
    bench.stash.tick(bench.now_ns);
    CHECK(!bench.cut());
    bench.now_ns += one_second;
    bench.stash.tick(bench.now_ns);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].member_count == 1);
}

TEST_CASE("deadlines: restarts do not put them off") {
    const TestRing ring;
    auto producer = ring.producer();
    send(producer, "alone", 0);
    StashOptions options = freshest_pair;
    options.min_size = 1;
    options.deadline = std::chrono::nanoseconds(300'000'000);
    bool shipped = false;
    for (int life = 0; life < 40 && !shipped; life++) {
        auto stash = open_stash(ring, options);
        Batch batch;
        shipped = stash->next(batch, Deadline::after_ms(30)) == NextBatch::batch;
    }
    CHECK(shipped);
}

TEST_CASE("deadlines: what lies in a lane unread completes a group that is due") {
    const TestRing ring;
    auto producer = ring.producer();
    StashOptions options = freshest_pair;
    options.min_size = 1;
    options.deadline = std::chrono::nanoseconds(50'000'000);
    auto stash = open_stash(ring, options);
    Batch batch;
    send(producer, "p", 0);
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    const auto due = Deadline::after_ns(options.due_after().count());
    send(producer, "p", 1);
    while (!due.passed()) std::this_thread::yield();  // the trainer is at work
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.groups()[0].members == 2);
}

TEST_CASE("deadlines: without one no group ships in part or is given up, however old it is") {
    for (const auto on_failed : {OnFailed::shrink, OnFailed::hold}) {
        Bench bench({.group_size = 3,
                     .extra = 1,
                     .min_size = 1,
                     .on_failed = on_failed,
                     .batch = BatchTarget::groups(1)});
        bench.send(1, 0);
        bench.send(1, 1);
        Arrival failed = member(1, 2);
        failed.status = Status::failed;
        bench.send(failed);
        bench.send(2, 0);
        for (int day = 0; day < 30; day++) {
            bench.now_ns += 24 * 3600 * one_second;
            bench.stash.tick(bench.now_ns);
        }
        CHECK(!bench.cut());
        CHECK(bench.stash.open_groups() == 2);
        CHECK(bench.stash.account().dropped_total() == Amount{});
        CHECK(bench.stash.deadlines().count_overdue() == 2);
        bench.send(1, 3);
        REQUIRE(bench.cut());
        CHECK(bench.batch.groups[0].member_count == 3);
        CHECK(bench.stash.deadlines().count_overdue() == 1);
    }
}

TEST_CASE("deadlines: a group that waits for ten minutes is not in the way of younger ones") {
    for (const auto order : {Order::windowed, Order::fifo}) {
        Bench bench({.group_size = 2,
                     .order = order,
                     .batch = BatchTarget::groups(1),
                     .advanced = {.window_fraction = 1}});
        bench.send(1, 0);
        bench.now_ns += 601 * one_second;
        bench.send(2, 0);
        bench.send(2, 1);
        CHECK(!bench.cut());
        bench.stash.tick(bench.now_ns);
        REQUIRE(bench.cut());
        CHECK(bench.batch.groups[0].key.low == 2);
        bench.stash.ack(bench.batch.id, bench.now_ns);
        bench.send(1, 1);
        CHECK(bench.cut());
    }
}

TEST_CASE("deadlines: a group that ships in part because of one is handed out to be told") {
    Bench bench({.group_size = 3,
                 .deadline = std::chrono::nanoseconds(10 * one_second),
                 .batch = BatchTarget::groups(1)});
    bench.send(1, 0);
    bench.send(1, 1);
    bench.send(2, 0);  // fewer than min_size
    bench.now_ns += 10 * one_second;
    bench.stash.tick(bench.now_ns);
    REQUIRE(bench.stash.deadlines().partial().size() == 1);
    CHECK(bench.stash.group(bench.stash.deadlines().partial().front()).key.low == 1);
    CHECK(bench.dropped(DropReason::too_few) == 1);
}
