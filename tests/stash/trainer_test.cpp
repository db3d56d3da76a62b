// Goal: the trainer's loop over a real ring: whole groups in place, ack and nack, restart.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <thread>
#include <vector>

#include "rollring/stash.hpp"
#include "support/pairs.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

void send_reward(Producer& producer, const std::string& prompt, std::uint32_t repetition,
                 double reward) {
    REQUIRE(rollring::test::send(producer,
                                 {.prompt = prompt, .repetition = repetition, .reward = reward}) ==
            Push::ok);
}

}  // namespace

TEST_CASE("trainer: interleaved rollouts of two producers come as whole groups, in place") {
    const TestRing ring;
    Producer producers[2] = {ring.producer(), ring.producer()};
    for (std::uint32_t repetition = 0; repetition < 4; repetition++) {
        for (int prompt = 0; prompt < 6; prompt++) {
            send_reward(producers[(prompt + repetition) % 2], "p" + std::to_string(prompt),
                        repetition, repetition);
        }
    }
    auto opened = Stash::open(ring.name(), {.group_size = 4, .batch = BatchTarget::groups(3)});
    REQUIRE(opened.has_value());
    Stash& stash = **opened;
    std::map<std::string, int> seen;
    Batch batch;
    for (int step = 0; step < 2; step++) {
        REQUIRE(stash.next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.groups().size() == 3);
        REQUIRE(batch.sequences().size() == 12);
        CHECK(batch.cu_seqlens().back() == 36);
        for (std::size_t group = 0; group < 3; group++) {
            const auto first = batch.group_offsets()[group];
            CHECK(batch.group_offsets()[group + 1] - first == 4);
            const auto prompt = batch.sequences()[first].view.instance_id();
            double sum = 0;
            for (std::uint32_t i = first; i < first + 4; i++) {
                const Sequence& sequence = batch.sequences()[i];
                CHECK(sequence.view.instance_id() == prompt);
                CHECK(sequence.view.meta().repetition_id == i - first);
                sum += batch.advantages()[i];
            }
            CHECK(sum == doctest::Approx(0));
            seen[std::string(prompt)]++;
        }
        REQUIRE(batch.ack(step).has_value());
    }
    CHECK(seen.size() == 6);
    CHECK(stash.account().conserved());
    CHECK(stash.account().shipped.records == 24);
    CHECK(stash.last_acked_step() == 1);
}

TEST_CASE("trainer: a batch tells of rewards that are no numbers, and of absent ones") {
    const TestRing ring;
    auto producer = ring.producer();
    send_reward(producer, "p", 0, 1);
    send_reward(producer, "p", 1, std::nan(""));
    send_reward(producer, "p", 2, 3);
    const std::vector<std::int32_t> tokens{1};
    Draft draft("p");
    draft.meta.repetition_id = 3;  // and no reward
    draft.set(Std::token_ids, tokens);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
    auto opened = Stash::open(ring.name(), {.group_size = 4, .batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    Batch batch;
    REQUIRE((*opened)->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.groups().size() == 1);
    CHECK(batch.groups()[0].members == 3);
    CHECK(batch.groups()[0].bad_rewards == 1);
    CHECK(batch.groups()[0].unrewarded == 1);
    REQUIRE(batch.sequences().size() == 3);
    const double advantage = 1 / (std::sqrt(2.0) + 1e-4);
    CHECK(batch.advantages()[0] == doctest::Approx(-advantage).epsilon(1e-14));
    CHECK(batch.advantages()[1] == doctest::Approx(advantage).epsilon(1e-14));
    CHECK(batch.advantages()[2] == 0);
    CHECK(std::isnan(batch.rewards()[2]));
    REQUIRE(batch.ack(0).has_value());
    const StashAccount account = (*opened)->account();
    CHECK(account.conserved());
    CHECK(account.dropped[static_cast<std::size_t>(DropReason::bad_reward)].records == 1);
}

TEST_CASE("trainer: a batch that is not acknowledged comes again") {
    const TestRing ring;
    auto producer = ring.producer();
    for (std::uint32_t repetition = 0; repetition < 4; repetition++) {
        send_reward(producer, "p", repetition, 0);
    }
    auto opened = Stash::open(ring.name(), {.group_size = 4, .batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    {
        Batch dropped_on_the_floor;
        REQUIRE((*opened)->next(dropped_on_the_floor, patience()) == NextBatch::batch);
    }
    Batch batch;
    REQUIRE((*opened)->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.sequences().size() == 4);
    CHECK((*opened)->next(batch, Deadline::now()) == NextBatch::batch);
    CHECK(batch.ack(0).has_value());
    CHECK((*opened)->next(batch, Deadline::now()) == NextBatch::timed_out);
}

TEST_CASE("trainer: resume with a complete batch pending") {
    const TestRing ring;
    auto producer = ring.producer();
    for (int prompt = 0; prompt < 3; prompt++) {
        for (std::uint32_t repetition = 0; repetition < 2; repetition++) {
            send_reward(producer, "p" + std::to_string(prompt), repetition, 0);
        }
    }
    for (int life = 0; life < 3; life++) {
        auto opened = Stash::open(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(1)});
        REQUIRE(opened.has_value());
        CHECK((*opened)->last_acked_step() == life - 1);
        Batch batch;
        REQUIRE((*opened)->next(batch, patience()) == NextBatch::batch);
        CHECK(batch.sequences()[0].view.instance_id() == "p" + std::to_string(life));
        REQUIRE(batch.ack(life).has_value());
        Batch leased_when_we_die;
        if (life < 2) {
            REQUIRE((*opened)->next(leased_when_we_die, patience()) == NextBatch::batch);
        }
    }
}

TEST_CASE("trainer: what is complete when the deadline has passed is not late") {
    const TestRing ring;
    auto producer = ring.producer();
    auto opened = Stash::open(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    Batch batch;
    for (int prompt = 0; prompt < 100; prompt++) {
        for (std::uint32_t repetition = 0; repetition < 2; repetition++) {
            send_reward(producer, "p" + std::to_string(prompt), repetition, 0);
        }
        REQUIRE((*opened)->next(batch, Deadline::now()) == NextBatch::batch);
        REQUIRE(batch.ack(prompt).has_value());
    }
}

TEST_CASE("trainer: a deadline is kept while records that make no batch keep coming") {
    const TestRing ring;
    auto opened = Stash::open(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    std::atomic<bool> enough{false};
    std::thread rollouts([&] {
        auto producer = ring.producer();
        while (!enough)
            send_reward(producer, "the same", 0, 0);  // one member, the rest are duplicates
    });
    Batch batch;
    CHECK((*opened)->next(batch, Deadline::after_ms(1)) == NextBatch::timed_out);
    enough = true;
    rollouts.join();
}

TEST_CASE("trainer: another thread ends the wait for a batch, whatever its deadline") {
    const TestRing ring;
    auto opened = Stash::open(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    Stash& stash = **opened;
    Batch batch;
    NextBatch answer = NextBatch::closed;
    std::thread waits([&] { answer = stash.next(batch, Deadline::never()); });
    stash.interrupt();
    waits.join();
    CHECK(answer == NextBatch::timed_out);
    auto producer = ring.producer();
    for (const std::uint32_t repetition : {0U, 1U}) send_reward(producer, "p", repetition, 0);
    CHECK(stash.next(batch, Deadline::never()) == NextBatch::batch);
}

TEST_CASE(
    "trainer: a producer that sends the keys of another is told from one with a few retries") {
    const TestRing ring;
    auto first = ring.producer({.name = "first"});
    auto stash =
        std::move(*Stash::open(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(2)}));
    Batch batch;
    const auto train = [&](std::int64_t step) {
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(step).has_value());
    };
    const auto send_groups = [](Producer& producer, const std::string& prefix) {
        for (int prompt = 0; prompt < 2; prompt++) {
            for (std::uint32_t repetition = 0; repetition < 2; repetition++) {
                send_reward(producer, prefix + std::to_string(prompt), repetition, 0);
            }
        }
    };
    send_groups(first, "a");
    train(0);
    send_groups(first, "e");
    train(1);
    send_reward(first, "a0", 0, 0);  // four late ones of sixteen are not a collision
    send_reward(first, "a0", 1, 0);
    send_reward(first, "a1", 0, 0);
    send_reward(first, "a1", 1, 0);
    send_groups(first, "b");
    train(2);
    CHECK(stash->account().dropped[static_cast<int>(DropReason::late)].records == 4);
    CHECK(stash->repeated_keys().empty());

    auto second = ring.producer({.name = "second"});
    send_groups(second, "a");
    send_reward(second, "c", 0, 0);
    second.close();
    send_groups(first, "d");
    train(3);
    // Still so when the lane's producer is gone.
    Event event;
    for (bool gone = false; !gone;) {
        REQUIRE(stash->next(batch, Deadline::after_ms(20)) == NextBatch::timed_out);
        while (stash->next_event(event)) gone |= event.kind == Event::Kind::producer_closed;
    }
    const auto found = stash->repeated_keys();
    REQUIRE(found.size() == 1);
    CHECK(found[0].producer == "second");
    CHECK(found[0].lane == 1);
    CHECK(found[0].records == 5);
    CHECK(found[0].late == 4);
    CHECK(found[0].duplicate == 0);
}

TEST_CASE("stash: the rest holds what was sent and nobody has read yet") {
    const TestRing ring;
    StashOptions options = rollring::test::freshest_pair;
    options.batch = BatchTarget::groups(64);
    const auto stash = rollring::test::open_stash(ring, options);
    auto producer = ring.producer();
    for (const char* prompt : {"a", "b"}) {
        send_reward(producer, prompt, 0, 1.0);
        send_reward(producer, prompt, 1, 0.0);
    }
    Batch batch;
    REQUIRE(stash->rest(batch) == NextBatch::batch);
    CHECK(batch.groups().size() == 2);
    REQUIRE(batch.ack(0).has_value());
    CHECK(stash->rest(batch) == NextBatch::timed_out);
}

TEST_CASE("trainer: the freshest groups come first, also out of what lay unread in the lanes") {
    const TestRing ring({.lanes = 2, .lane_bytes = mib});
    auto stash = open_stash(
        ring, {.group_size = 2, .order = Order::freshest, .batch = BatchTarget::groups(1)});
    auto one = ring.producer();
    auto other = ring.producer();
    constexpr int groups = 200;  // more than a turn reads
    for (int group = 0; group < groups; group++) {
        const std::string prompt = "g" + std::to_string(group);
        REQUIRE(send_bytes(one, prompt, 0, kib, patience(), 2) == Push::ok);
        REQUIRE(send_bytes(other, prompt, 1, kib, patience(), 2) == Push::ok);
    }
    for (int group = groups - 1; group > groups - 6; group--) {
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        CHECK(batch.sequences()[0].view.instance_id() == "g" + std::to_string(group));
        REQUIRE(batch.ack(groups - group).has_value());
    }
    // Also for a caller that may not wait.
    REQUIRE(send_bytes(one, "later", 0, kib, patience(), 2) == Push::ok);
    REQUIRE(send_bytes(other, "later", 1, kib, patience(), 2) == Push::ok);
    Batch batch;
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::batch);
    CHECK(batch.sequences()[0].view.instance_id() == "later");
}

TEST_CASE("trainer: the former name of next") {
    const TestRing ring;
    auto stash = Stash::open(ring.name(), {});
    REQUIRE(stash.has_value());
    Batch batch;
    CHECK((*stash)->next_batch(batch, Deadline::now()) == NextBatch::timed_out);
}
