// Goal: groups that stay incomplete neither stall producers nor grow memory, and no record that was
// moved for them is lost or doubled when the trainer comes back.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "support/pairs.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("straggler: older than 100 lane-fulls, and no producer stalls, memory is bounded") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    std::multiset<std::string> seen;
    for (int i = 0; i < 5; i++) send(producer, "straggler" + std::to_string(i), 0);
    const int pairs = static_cast<int>(100 * 64 * kib / (2 * 1200)) + 1;  // 1200 B a record at most
    const auto before = stat_ring(ring.name());
    pass_pairs(producer, *stash, "p", pairs, seen);
    CHECK(producer.stats().waits == 0);
    CHECK(stash->copies().evacuated_records >= 5);
    CHECK(stash->copies().evacuated_records < 50);  // the five and their neighbours, not the rest
    const auto after = stat_ring(ring.name());
    CHECK(after->resident_bytes == before->resident_bytes);
    for (int i = 0; i < 5; i++) send(producer, "straggler" + std::to_string(i), 1);
    for (int i = 0; i < 5; i++) {
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        check_pairs(batch, seen);
        REQUIRE(batch.ack(next_step(*stash)).has_value());
    }
    CHECK(seen.size() == static_cast<std::size_t>(pairs) + 5);
    CHECK(stash->account().conserved());
    CHECK(stash->account().held == Amount{});
}

TEST_CASE("straggler: many at once, so that the spill is compacted") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    std::multiset<std::string> seen;
    send(producer, "first", 0);
    // Each stays open for half a lane, then another takes its place: all of them pass the spill.
    for (int round = 0; round < 60; round++) {
        const std::string late = "late" + std::to_string(round);
        for (int i = 0; i < 4; i++) send(producer, late + std::to_string(i), 0);
        pass_pairs(producer, *stash, late + "p", 20, seen);
        for (int i = 0; i < 4; i++) {
            send(producer, late + std::to_string(i), 1);
            Batch batch;
            REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
            check_pairs(batch, seen);
            REQUIRE(batch.ack(next_step(*stash)).has_value());
        }
    }
    CHECK(producer.stats().waits == 0);
    // More went through the spill than it holds, and the oldest pinned it all the time.
    CHECK(stash->copies().copied_bytes > 3 * 64 * kib);
    send(producer, "first", 1);
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(seen.count("first") == 1);
    CHECK(seen.size() == 60 * 24 + 1);
}

TEST_CASE("straggler: a spill that was full takes more once it has room") {
    RingOptions options = small_lanes;
    options.spill_bytes = 24 * kib;  // a few records more than stay open
    const TestRing ring(options);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    std::multiset<std::string> seen;
    std::uint64_t evacuated = 0;
    SUBCASE("nothing stays") {}
    SUBCASE("the oldest stays") {
        send(producer, "first", 0);
    }
    for (int round = 0; round < 6; round++) {
        const std::string late = "late" + std::to_string(round);
        // As many as may be opened: they fill the spill.
        int open = 0;
        while (open < 7 && try_send(producer, late + std::to_string(open), 0, Deadline::now())) {
            open++;
            Batch none;
            REQUIRE(stash->next(none, Deadline::now()) == NextBatch::timed_out);
        }
        REQUIRE(open >= 3);
        const auto finish = [&](int i) {
            send(producer, late + std::to_string(i), 1);
            Batch batch;
            REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
            check_pairs(batch, seen);
            REQUIRE(batch.ack(next_step(*stash)).has_value());
        };
        finish(--open);  // so that the pairs have a place
        finish(--open);
        pass_pairs(producer, *stash, late + "p", 16, seen);
        CHECK(stash->copies().evacuated_records > evacuated);
        evacuated = stash->copies().evacuated_records;
        for (int i = 0; i < open; i++) finish(i);
    }
    CHECK(stash->account().held.records <= 1);
}

TEST_CASE("straggler: its evacuated record survives the trainer, once") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    for (int life = 0; life < 3; life++) {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        if (life == 0) send(producer, "straggler", 0);
        pass_pairs(producer, *stash, "life" + std::to_string(life), 60, seen);
        CHECK(stash->open_groups() == 1);
        CHECK(stash->account().held.records == 1);
        const auto waiting = stash->explain(8);
        REQUIRE(waiting.size() == 1);
        CHECK(waiting[0].instance_id == "straggler");
        CHECK(waiting[0].missing == std::vector<std::uint32_t>{1});
        REQUIRE(waiting[0].producers.size() == 1);
    }
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    send(producer, "straggler", 1);
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    REQUIRE(batch.ack(next_step(*stash)).has_value());
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(seen.count("straggler") == 1);
}

TEST_CASE("straggler: a successor reads a long spill again before it puts more there") {
    RingOptions options = small_lanes;
    options.spill_bytes = 512 * kib;  // more than is read of one lane before the next has its turn
    const TestRing ring(options);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    {
        const auto stash = open_stash(ring, freshest_pair);
        for (int i = 0; i < 100; i++) {
            send(producer, "straggler" + std::to_string(i), 0);
            pass_pairs(producer, *stash, "p" + std::to_string(i) + "-", 1, seen);
        }
        REQUIRE(stash->copies().copied_bytes > 64 * kib);
    }
    for (int pair = 0; pair < 4; pair++) {
        for (std::uint32_t i = 0; i < 2; i++) send(producer, "q" + std::to_string(pair), i);
    }
    const auto stash = open_stash(ring, freshest_pair);
    // The four pairs stay in the lane until the stash moves them for a producer that waits.
    std::thread rest([&producer] {
        for (int pair = 0; pair < 60; pair++) {
            for (std::uint32_t i = 0; i < 2; i++) send(producer, "r" + std::to_string(pair), i);
        }
        for (int i = 0; i < 100; i++) send(producer, "straggler" + std::to_string(i), 1);
    });
    for (int i = 0; i < 60 + 100 + 4; i++) {  // and the groups that were ready before
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        check_pairs(batch, seen);
        REQUIRE(batch.ack(next_step(*stash)).has_value());
    }
    rest.join();
    CHECK(seen.size() == 100 + 4 + 60 + 100);
    CHECK(stash->open_groups() == 0);
}

TEST_CASE("straggler: a successor ships the attempt in the spill, not an older one in the lane") {
    RingOptions options = small_lanes;
    options.spill_bytes = 512 * kib;  // more than is read of one lane before the next has its turn
    const TestRing ring(options);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    {
        const auto stash = open_stash(ring, freshest_pair);
        for (int i = 0; i < 80; i++) {
            send(producer, "straggler" + std::to_string(i), 0);
            pass_pairs(producer, *stash, "p" + std::to_string(i) + "-", 1, seen);
        }
        for (const std::uint32_t attempt : {0U, 1U}) {
            REQUIRE(try_send(producer, "retried", 0, patience(), 2, attempt));
        }
        pass_pairs(producer, *stash, "q", 30, seen);
        REQUIRE(stash->copies().evacuated_records > 80);
    }
    REQUIRE(try_send(producer, "retried", 0, patience(), 2, 0));  // sent again, late
    send(producer, "retried", 1, 2);
    for (int pair = 0; pair < 10; pair++) {  // so that a batch can be cut before all is read
        for (std::uint32_t i = 0; i < 2; i++) send(producer, "r" + std::to_string(pair), i, 2);
    }
    const auto stash = open_stash(
        ring, {.group_size = 2, .order = Order::freshest, .batch = BatchTarget::groups(11)});
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    bool found = false;
    for (const Sequence& sequence : batch.sequences()) {
        const Meta& meta = sequence.view.meta();
        if (sequence.view.instance_id() != "retried" || meta.repetition_id != 0) continue;
        found = true;
        CHECK(meta.attempt == 1);
    }
    CHECK(found);
}

TEST_CASE("straggler: a plain consumer gets what was evacuated, too") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        send(producer, "straggler", 0);
        pass_pairs(producer, *stash, "p", 60, seen);
        REQUIRE(stash->copies().evacuated_records == 1);
    }
    producer.close();
    CHECK(diagnose_ring(ring.name()).has_records);  // so that `doctor --fix` leaves it
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.view.instance_id() == "straggler");
    CHECK(record.redelivered);
    CHECK(record.producer_lane == producer.lane());
    CHECK(record.sequence == 0);
    consumer.release(record.ref);
    CHECK(consumer.poll(record) == Poll::empty);
}

TEST_CASE("full: lanes filled with incomplete groups are relieved, so that the rest can come") {
    const TestRing ring(small_lanes);
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(40)});
    // The first halves fill a lane to two thirds, with their second halves it is more than it
    // holds.
    std::thread rollouts([&] {
        auto producer = ring.producer();
        for (std::uint32_t half = 0; half < 2; half++) {
            for (int i = 0; i < 40; i++) send(producer, "p" + std::to_string(i), half);
        }
    });
    std::multiset<std::string> seen;
    Batch batch;
    CHECK(stash->next(batch, patience()) == NextBatch::batch);
    rollouts.join();
    check_pairs(batch, seen);
    CHECK(seen.size() == 40);
    CHECK(stash->copies().batches_short == 0);
    CHECK(stash->copies().evacuated_records > 0);
}

TEST_CASE("full: a batch that lanes and spill cannot hold ships what is ready") {
    RingOptions options = small_lanes;
    options.spill_bytes = 0;
    const TestRing ring(options);
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1000)});
    std::thread rollouts([&] {
        auto producer = ring.producer();
        for (int i = 0; i < 200; i++) {
            send(producer, "p" + std::to_string(i), 0);
            send(producer, "p" + std::to_string(i), 1);
        }
    });
    std::multiset<std::string> seen;
    while (seen.size() < 200) {
        Batch batch;
        const bool came = stash->next(batch, Deadline::after_ms(200)) == NextBatch::batch;
        if (!came && stash->rest(batch) != NextBatch::batch) continue;
        check_pairs(batch, seen);
        REQUIRE(batch.ack(next_step(*stash)).has_value());
    }
    rollouts.join();
    CHECK(stash->copies().batches_short > 0);
    CHECK(seen.size() == 200);
    CHECK(stash->account().conserved());
}

TEST_CASE("receipt: settles what was leased when the trainer died, and only that") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    for (int pair = 0; pair < 3; pair++) {
        send(producer, "p" + std::to_string(pair), 0);
        send(producer, "p" + std::to_string(pair), 1);
    }
    std::string receipt;
    {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        receipt = batch.receipt();
        CHECK(receipt.size() == 32 + 2 * 32);
    }
    {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        CHECK(!stash->settle("rubbish", 7).has_value());
        CHECK(!stash->settle(receipt.substr(0, 64), 7).has_value());
        const auto settled = stash->settle(receipt, 7);
        REQUIRE(settled.has_value());
        CHECK(*settled == 2);
        CHECK(*stash->settle(receipt, 7) == 0);
        CHECK(stash->last_acked_step() == 7);
        std::multiset<std::string> seen;
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        check_pairs(batch, seen);
        CHECK(seen.count("p1") == 1);
        CHECK(!stash->settle(receipt, 7).has_value());  // too late
        REQUIRE(batch.ack(8).has_value());
    }
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    CHECK(*stash->settle(receipt, 9) == 0);
    CHECK(stash->last_acked_step() == 8);
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.sequences()[0].view.instance_id() == "p2");
    REQUIRE(batch.ack(9).has_value());
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
}

TEST_CASE("receipt: finds its records in the spill, if they were nacked and moved") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    std::string receipt;
    {
        const auto stash = open_stash(ring, freshest_pair);
        send(producer, "old", 0);
        send(producer, "old", 1);
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        receipt = batch.receipt();
    }
    {
        StashOptions triples = freshest_pair;
        triples.group_size = 3;  // so that the old pair waits
        const auto stash = open_stash(ring, triples);
        pass_pairs(producer, *stash, "p", 60, seen);
        REQUIRE(stash->copies().evacuated_records == 2);
    }
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    CHECK(*stash->settle(receipt, 100) == 2);
    send(producer, "old", 1);  // late: no ghost
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 0);
}

TEST_CASE("tombstones: a late member opens no ghost in the next trainer's time either") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        pass_pairs(producer, *stash, "p", 1, seen);
    }
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    send(producer, "p0", 1);
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 0);
    const auto late = stash->account().dropped[static_cast<std::size_t>(DropReason::late)];
    CHECK(late.records == 1);
}

TEST_CASE("orphans: a member begun by a producer that died in a predecessor's time fails") {
    const TestRing ring(small_lanes);
    const auto options =
        StashOptions{.group_size = 2, .min_size = 1, .batch = BatchTarget::groups(1)};
    {
        auto producer = ring.producer();
        send(producer, "p", 0);
        Draft half("p");
        half.meta.repetition_id = 1;
        half.meta.last_subsequence = false;
        const std::vector<std::int32_t> ids{1};
        half.set(Std::token_ids, ids);
        REQUIRE(producer.push(half, patience()) == Push::ok);
        auto consumer = ring.consumer();
        Record record;
        for (int i = 0; i < 2; i++) REQUIRE(consumer.wait(record, patience()) == Poll::record);
        producer.close();
        rollring::test::await_close(consumer);
    }
    const auto stash = open_stash(ring, options);
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.sequences().size() == 1);
    CHECK(batch.groups()[0].members == 1);
}
