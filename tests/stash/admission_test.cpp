// Goal: producers wait before they open more groups than a stash wants, and never in the middle of
// one; the places of dead ones are written off.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ring_map.hpp"
#include "rollring/relay.hpp"
#include "settled.hpp"

using namespace rollring;
using rollring::test::open_settled;
using rollring::test::patience;
using rollring::test::prompt;
using rollring::test::send;
using rollring::test::ten;
using rollring::test::TestRing;

TEST_CASE("admission: the eleventh group waits, members of the ten never do") {
    const TestRing ring;
    Producer producers[2] = {ring.producer(), ring.producer()};
    const auto stash = open_settled(ring, ten);
    Batch batch;
    for (int i = 0; i < 10; i++) REQUIRE(send(producers[0], prompt(i), 0, patience()) == Push::ok);
    // Announced is enough: nothing has been read yet.
    CHECK(send(producers[0], prompt(10), 0, Deadline::now()) == Push::timed_out);
    CHECK(producers[0].problem().find("no new group") != std::string::npos);
    CHECK(producers[1].open_group(prompt(10), 0, Deadline::now()) == Push::timed_out);
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 10);
    CHECK(send(producers[1], prompt(10), 0, Deadline::now()) == Push::timed_out);
    // The other producer did not open them, and finishes them.
    for (int i = 0; i < 10; i++)
        CHECK(send(producers[1], prompt(i), 1, Deadline::now()) == Push::ok);
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(send(producers[0], prompt(10), 0, Deadline::now()) == Push::timed_out);  // still leased
    REQUIRE(batch.ack(0).has_value());
    CHECK(send(producers[0], prompt(10), 0, patience()) == Push::ok);
    CHECK(send(producers[0], prompt(11), 0, Deadline::now()) == Push::timed_out);
    // An ended group is not opened again by a late member, but the member may be sent.
    CHECK(send(producers[0], prompt(0), 2, Deadline::now()) == Push::ok);
}

TEST_CASE("admission: who waits for a place is woken by the trainer") {
    const TestRing ring;
    auto producer = ring.producer();
    const auto stash = open_settled(ring, ten);
    std::thread rollouts([&] {
        for (int i = 0; i < 500; i++) {
            for (std::uint32_t half = 0; half < 2; half++) {
                REQUIRE(send(producer, prompt(i), half, patience()) == Push::ok);
            }
        }
    });
    std::size_t most = 0;
    for (int i = 0; i < 500; i++) {
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        most = std::max(most, stash->open_groups());
        REQUIRE(batch.ack(i).has_value());
    }
    rollouts.join();
    CHECK(most <= 10);
    CHECK(stash->open_groups() == 0);
}

TEST_CASE("admission: many producers open interleaved groups; bound and completion hold") {
    const TestRing ring({.lanes = 4, .lane_bytes = 1 << 20});
    constexpr int groups = 400;
    constexpr std::uint32_t bound = 16;
    const auto stash = open_settled(ring, {.group_size = 4,
                                           .order = Order::freshest,
                                           .batch = BatchTarget::groups(4),
                                           .max_open_groups = bound});
    std::vector<std::thread> rollouts;
    rollouts.reserve(4);
    for (std::uint32_t member = 0; member < 4; member++) {
        rollouts.emplace_back([&ring, member] {
            auto producer = ring.producer();
            // Each goes through the prompts in another order within a window, as workers do.
            for (int block = 0; block < groups; block += 8) {
                for (int i = 0; i < 8; i++) {
                    const int number = block + (i * 3 + static_cast<int>(member)) % 8;
                    REQUIRE(send(producer, prompt(number), member, patience()) == Push::ok);
                }
            }
        });
    }
    std::size_t most = 0;
    int shipped = 0;
    for (int step = 0; shipped < groups; step++) {
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        most = std::max(most, stash->open_groups());
        shipped += static_cast<int>(batch.groups().size());
        REQUIRE(batch.ack(step).has_value());
    }
    for (auto& thread : rollouts) thread.join();
    CHECK(most <= bound + 4);  // one group a producer
    CHECK(stash->account().groups_partial == 0);
    CHECK(stash->account().conserved());
}

TEST_CASE("admission: bytes are bounded too") {
    const TestRing ring;
    auto producer = ring.producer();
    const auto stash = open_settled(
        ring,
        {.group_size = 2, .batch = BatchTarget::groups(1), .advanced = {.max_open_bytes = 4096}});
    int sent = 0;
    Batch batch;
    while (send(producer, prompt(sent), 0, Deadline::now()) == Push::ok) {
        sent++;
        REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        REQUIRE(sent < 100);
    }
    CHECK(producer.problem().find("of records are held") != std::string::npos);
    CHECK(send(producer, prompt(0), 1, Deadline::now()) == Push::ok);
}

TEST_CASE("admission: places of a producer that dies or closes are written off") {
    const TestRing ring;
    const auto stash = open_settled(ring, ten);
    const pid_t child = fork();
    if (child == 0) {
        auto opened = Producer::open(ring.name());
        bool all = opened.has_value();
        for (int i = 0; all && i < 10; i++) {
            all = opened->open_group(prompt(i), 0, Deadline::now()) == Push::ok;
        }
        all = all && opened->open_group("one more", 0, Deadline::now()) == Push::timed_out;
        if (all) static_cast<void>(raise(SIGKILL));
        _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    std::atomic<bool> done{false};
    std::thread rollouts([&] {
        auto producer = ring.producer();
        CHECK(producer.open_group("after", 0, patience()) == Push::ok);
        CHECK(producer.open_group("after", 0, patience()) == Push::ok);  // one place
        for (int i = 0; i < 9; i++) {
            CHECK(producer.open_group(prompt(i), 0, patience()) == Push::ok);
        }
        CHECK(producer.open_group("twelfth", 0, Deadline::now()) == Push::timed_out);
        producer.close();
        auto next = ring.producer();
        CHECK(next.open_group("twelfth", 0, patience()) == Push::ok);
        done = true;
    });
    Batch batch;
    while (!done) REQUIRE(stash->next(batch, Deadline::after_ms(1)) == NextBatch::timed_out);
    rollouts.join();
}

TEST_CASE("admission: a restarted trainer counts the groups that were open, and no others") {
    const TestRing ring;
    auto producer = ring.producer();
    {
        const auto stash = open_settled(ring, ten);
        for (int i = 0; i < 10; i++) REQUIRE(send(producer, prompt(i), 0, patience()) == Push::ok);
        REQUIRE(send(producer, prompt(0), 1, patience()) == Push::ok);
        REQUIRE(send(producer, prompt(1), 1, patience()) == Push::ok);
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(0).has_value());
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    }
    auto opened = Stash::open(ring.name(), ten);
    REQUIRE(opened.has_value());
    // Nine are open, though the new trainer has not read them again yet.
    CHECK(send(producer, "tenth", 0, Deadline::now()) == Push::ok);
    CHECK(send(producer, "eleventh", 0, Deadline::now()) == Push::timed_out);
    Batch batch;
    REQUIRE((*opened)->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(1).has_value());
    REQUIRE((*opened)->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK((*opened)->open_groups() == 9);
    CHECK(send(producer, "eleventh", 0, Deadline::now()) == Push::ok);
    CHECK(send(producer, "twelfth", 0, Deadline::now()) == Push::timed_out);
}

TEST_CASE("admission: a plain consumer after a killed trainer asks nobody to wait") {
    const TestRing ring;
    auto producer = ring.producer();
    const pid_t child = fork();
    if (child == 0) {
        StashOptions one = ten;
        one.max_open_groups = 1;
        const auto opened = Stash::open(ring.name(), one);
        if (opened.has_value()) static_cast<void>(raise(SIGKILL));
        _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(send(producer, prompt(0), 0, patience()) == Push::ok);
    REQUIRE(send(producer, prompt(1), 0, Deadline::now()) == Push::timed_out);
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(send(producer, prompt(1), 0, Deadline::now()) == Push::ok);
}

TEST_CASE("admission: a plain consumer between two trainers leaves what the second one counts") {
    const TestRing ring;
    auto producer = ring.producer();
    {
        const auto stash = open_settled(ring, ten);
        for (int i = 0; i < 10; i++) REQUIRE(send(producer, prompt(i), 0, patience()) == Push::ok);
        Batch batch;
        REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    }
    {
        auto consumer = ring.consumer();
        Record record;
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
    }
    auto opened = Stash::open(ring.name(), ten);
    REQUIRE(opened.has_value());
    CHECK(send(producer, "eleventh", 0, Deadline::now()) == Push::timed_out);
}

TEST_CASE("admission: a member behind a group that may not be opened does not stall the run") {
    const TestRing ring;
    const auto stash = open_settled(
        ring, {.group_size = 2, .batch = BatchTarget::groups(2), .max_open_groups = 2});
    std::thread rollouts([&] {
        auto producer = ring.producer();
        for (const auto& [number, member] :
             {std::pair{0, 0U}, {0, 1U}, {1, 0U}, {2, 0U}, {1, 1U}, {2, 1U}}) {
            CHECK(send(producer, prompt(number), member, patience()) == Push::ok);
        }
    });
    Batch batch;
    std::size_t groups = 0;
    for (std::int64_t step = 0; groups < 3; step++) {
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        groups += batch.groups().size();
        REQUIRE(batch.ack(step).has_value());
    }
    rollouts.join();
    CHECK(stash->copies().batches_short == 1);
    CHECK(stash->account().groups_partial == 0);
}

TEST_CASE("admission: a batch is not cut short while a place that was given away is on its way") {
    // Work that takes a second of a busy machine must not decide: then ready groups ship.
    bool waited = false;
    for (int tried = 0; tried < 20 && !waited; tried++) {
        const TestRing ring({.lanes = 3, .lane_bytes = 1 << 20, .group_rows = 8});
        const auto stash = open_settled(
            ring, {.group_size = 1, .batch = BatchTarget::groups(2), .max_open_groups = 2});
        auto first = ring.producer();
        auto second = ring.producer();
        auto third = ring.producer();
        Batch batch;
        REQUIRE(second.open_group("on its way", 0, patience(), {1, 0}) == Push::ok);
        const std::int64_t before_ns = monotonic_ns();
        REQUIRE(send(first, "complete", 0, patience()) == Push::ok);
        REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        REQUIRE(third.open_group("one more", 0, Deadline::now(), {1, 0}) == Push::timed_out);
        const NextBatch got = stash->next(batch, Deadline::now());
        if (monotonic_ns() - before_ns > 900'000'000) continue;
        waited = true;
        REQUIRE(got == NextBatch::timed_out);
        REQUIRE(send(second, "on its way", 0, patience()) == Push::ok);
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        CHECK(batch.groups().size() == 2);
        CHECK(stash->copies().batches_short == 0);
    }
    CHECK(waited);
}

TEST_CASE("admission: a record that fits into no lane takes no place") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    const auto stash = open_settled(ring, ten);
    const std::vector<std::int32_t> ids(30'000, 1);
    for (int i = 0; i < 20; i++) {
        const std::string name = prompt(100 + i);
        Draft draft(name);
        draft.set(Std::token_ids, ids);
        REQUIRE(producer.push(draft, Deadline::now()) == Push::too_large);
        CHECK(producer.problem().find("--lane-bytes") != std::string::npos);
    }
    for (int i = 0; i < 10; i++) {
        REQUIRE(send(producer, prompt(i), 0, Deadline::now()) == Push::ok);
    }
    CHECK(send(producer, prompt(10), 0, Deadline::now()) == Push::timed_out);
}

TEST_CASE("admission: a successor has the places of its predecessor, beyond the bounds") {
    const TestRing ring;
    Producer producers[2] = {ring.producer(), ring.producer()};
    const auto stash = open_settled(ring, ten);
    for (int i = 0; i < 10; i++) {
        REQUIRE(producers[0].open_group(prompt(i), 0, Deadline::now()) == Push::ok);
    }
    const GroupKey key = GroupKey::of("old", 0);
    CHECK(RelayProducer::holds_place(producers[0], GroupKey::of(prompt(0), 0)));
    CHECK_FALSE(RelayProducer::holds_place(producers[1], key));
    RelayProducer::inherit_place(producers[1], key, {.group_size = 2});
    RelayProducer::inherit_place(producers[1], key, {.group_size = 2});  // once only
    CHECK(RelayProducer::holds_place(producers[1], key));
    // There are eleven now: one that ends leaves none.
    CHECK(producers[0].cancel_group(prompt(0), 0));
    CHECK(producers[0].open_group("new", 0, Deadline::now()) == Push::timed_out);
    CHECK(send(producers[1], "old", 0, Deadline::now()) == Push::ok);
    CHECK_FALSE(RelayProducer::holds_place(producers[1], key));
    CHECK_FALSE(producers[1].cancel_group(key));
    Batch batch;
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 1);
    CHECK(producers[0].open_group("new", 0, Deadline::now()) == Push::timed_out);
    CHECK(producers[0].cancel_group(prompt(1), 0));
    CHECK(producers[0].open_group("new", 0, Deadline::now()) == Push::ok);
}

TEST_CASE("admission: a place that is not needed is given back") {
    const TestRing ring;
    Producer producers[2] = {ring.producer(), ring.producer()};
    const auto stash = open_settled(ring, ten);
    for (int i = 0; i < 10; i++) {
        REQUIRE(producers[0].open_group(prompt(i), 0, Deadline::now()) == Push::ok);
    }
    CHECK(send(producers[1], "new", 0, Deadline::now()) == Push::timed_out);
    CHECK_FALSE(producers[1].cancel_group(prompt(0), 0));  // another's
    CHECK_FALSE(producers[0].cancel_group(prompt(0), 1));
    // It wakes a waiting producer.
    std::thread waits([&] { CHECK(send(producers[1], "new", 0, patience()) == Push::ok); });
    CHECK(producers[0].cancel_group(prompt(0), 0));
    waits.join();
    CHECK_FALSE(producers[0].cancel_group(prompt(0), 0));
    CHECK(producers[0].open_group(prompt(0), 0, Deadline::now()) == Push::timed_out);
    // Once a record of it was sent, it is the stash's.
    REQUIRE(send(producers[0], prompt(1), 0, Deadline::now()) == Push::ok);
    CHECK_FALSE(producers[0].cancel_group(prompt(1), 0));
    for (int i = 2; i < 10; i++) CHECK(producers[0].cancel_group(prompt(i), 0));
    // Two are open, so eight places are free, and none of them twice.
    Batch batch;
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 2);
    for (int i = 0; i < 8; i++) {
        CHECK(send(producers[1], "more " + prompt(i), 0, Deadline::now()) == Push::ok);
    }
    CHECK(send(producers[1], "more", 0, Deadline::now()) == Push::timed_out);
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 10);
    CHECK(send(producers[1], "more", 0, Deadline::now()) == Push::timed_out);
}

TEST_CASE("admission: with its place a group gives back the room that was claimed for it") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10, .spill_bytes = 256 << 10});
    Producer producers[2] = {ring.producer(), ring.producer()};
    const auto stash = open_settled(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    const GroupPlan plan{.group_size = 2, .record_bytes = 16 << 10};
    const auto open = [&](int producer, const std::string& name) {
        return producers[producer].open_group(name, 0, Deadline::now(), plan);
    };
    int opened = 0;
    while (opened < 100 && open(0, prompt(opened)) == Push::ok) opened++;
    REQUIRE(opened >= 1);
    REQUIRE(opened < 100);  // bytes stop it, and not the number of groups
    CHECK(producers[0].problem().find("of the room") != std::string::npos);
    REQUIRE(open(1, "new") == Push::timed_out);
    for (int i = 0; i < 200; i++) {
        REQUIRE(producers[0].cancel_group(prompt(0), 0));
        REQUIRE(open(1, "new") == Push::ok);
        REQUIRE(open(0, prompt(0)) == Push::timed_out);
        REQUIRE(producers[1].cancel_group("new", 0));
        REQUIRE(open(0, prompt(0)) == Push::ok);
        REQUIRE(open(1, "new") == Push::timed_out);
    }
    // Records that are sent afterwards count against the claim for them.
    for (std::uint32_t member = 0; member < 2; member++) {
        REQUIRE(send(producers[0], prompt(0), member, Deadline::now()) == Push::ok);
    }
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(0).has_value());
    CHECK(open(1, "new") == Push::ok);
    CHECK(open(1, "newer") == Push::timed_out);
}

// It would be in the way of others while it is there, and a waiting producer asks again and again.
TEST_CASE("admission: a claim that will not stand is not made") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10, .spill_bytes = 256 << 10});
    Producer producers[2] = {ring.producer(), ring.producer()};
    const GroupPlan plan{.group_size = 2, .record_bytes = 60 << 10};
    REQUIRE(producers[0].may_send("a", 0, plan));
    const auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    const LaneOwner& owner = map->owner(producers[1].lane());
    std::atomic<bool> over = false;
    std::atomic<bool> watches = false;
    std::uint64_t claims = 0;
    std::thread watcher([&] {
        while (!over) {
            claims += observe(owner.lines_claimed) != 0 ? 1 : 0;
            watches = true;
        }
    });
    while (!watches) std::this_thread::yield();
    int let_in = 0;
    for (int i = 0; i < 100'000; i++) let_in += producers[1].may_send("b", 0, plan) ? 1 : 0;
    over = true;
    watcher.join();
    CHECK(let_in == 0);
    CHECK(claims == 0);
}
