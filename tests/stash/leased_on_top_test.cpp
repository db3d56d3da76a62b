// Goal: the bound on open groups counts those that were opened before it, and, where the trainer
// says so, not those that the trainer holds.
#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "settled.hpp"

using namespace rollring;
using rollring::test::open_settled;
using rollring::test::patience;
using rollring::test::prompt;
using rollring::test::send;
using rollring::test::ten;
using rollring::test::TestRing;

TEST_CASE("admission: groups opened before the trainer came count") {
    const TestRing ring;
    auto producer = ring.producer();
    auto other = ring.producer();  // the first has places left, from before there was a bound
    int sent = 0;
    for (; sent < 25; sent++) {
        REQUIRE(send(producer, prompt(sent), 0, Deadline::now()) == Push::ok);
        REQUIRE(send(producer, prompt(sent), 1, Deadline::now()) == Push::ok);
    }
    const auto stash = Stash::open(ring.name(), ten);
    REQUIRE(stash.has_value());
    Batch batch;
    int step = 0;
    for (; step < 15; step++) {
        CHECK(send(other, prompt(sent), 0, Deadline::now()) == Push::timed_out);
        REQUIRE((*stash)->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(step).has_value());
    }
    REQUIRE((*stash)->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(step).has_value());
    CHECK(send(other, prompt(sent), 0, patience()) == Push::ok);
}

TEST_CASE("admission: leased groups come on top where the trainer asks for more first") {
    const TestRing ring;
    auto producer = ring.producer();
    StashOptions on_top = ten;
    on_top.max_open_groups = 2;
    on_top.advanced.count_leased = false;
    const auto stash = open_settled(ring, on_top);
    std::vector<Batch> held(5);
    int sent = 0;
    for (Batch& batch : held) {
        // Woken by the lease, not by its end.
        REQUIRE(send(producer, prompt(sent), 0, patience()) == Push::ok);
        REQUIRE(send(producer, prompt(sent++), 1, patience()) == Push::ok);
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    }
    REQUIRE(send(producer, prompt(sent++), 0, patience()) == Push::ok);
    REQUIRE(send(producer, prompt(sent), 0, patience()) == Push::ok);
    CHECK(send(producer, prompt(sent + 1), 0, Deadline::now()) == Push::timed_out);
    CHECK(stash->open_groups() == 5);
    for (Batch& batch : held) REQUIRE(batch.ack(0).has_value());
    CHECK(send(producer, prompt(sent + 1), 0, Deadline::now()) == Push::timed_out);  // still two
}

TEST_CASE("admission: a group beyond the bound is let in though others are leased") {
    const TestRing ring;
    auto producer = ring.producer();
    StashOptions on_top = ten;
    on_top.max_open_groups = 1;
    on_top.advanced.count_leased = false;
    const auto stash = open_settled(ring, on_top);
    Batch held;
    Batch batch;
    REQUIRE(send(producer, prompt(0), 0, patience()) == Push::ok);
    REQUIRE(send(producer, prompt(0), 1, patience()) == Push::ok);
    REQUIRE(stash->next(held, patience()) == NextBatch::batch);
    // Its other half will never come: only the bound stands between the trainer and the next group.
    REQUIRE(send(producer, prompt(1), 0, patience()) == Push::ok);
    std::thread rollouts([&] {
        REQUIRE(send(producer, prompt(2), 0, patience()) == Push::ok);
        REQUIRE(send(producer, prompt(2), 1, patience()) == Push::ok);
    });
    CHECK(stash->next(batch, patience()) == NextBatch::batch);
    rollouts.join();
}
