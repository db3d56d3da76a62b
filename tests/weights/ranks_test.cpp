// Several ranks that commit together, and versions that reach the stash's staleness rule.

#include <thread>

#include "channel.hpp"
#include "control_map.hpp"
#include "ranks.hpp"
#include "ring_link.hpp"
#include "rollring/stash.hpp"

namespace rollring::test {
namespace {

Publisher rank_on(const TestRing& ring, Tensors& tensors, std::uint32_t rank) {
    return publisher_on(ring, tensors, {.rank = rank, .ranks = 2});
}

Subscriber engine_on(const TestRing& ring, Tensors& tensors, std::uint32_t rank) {
    return subscriber_on(ring, tensors, {.name = "e" + std::to_string(rank), .rank = rank});
}

}  // namespace

TEST_CASE("a rank that looks late finds its version committed, though a later one was aborted") {
    using weights::Outcome;
    weights::RanksPage page{};
    page.decision = -1;
    page.committed = -1;
    CHECK(!weights::decided(page, 0));
    CHECK(weights::decide(page, 0, Outcome::committed));
    CHECK(!weights::decide(page, 0, Outcome::aborted));
    CHECK(weights::decided(page, 0) == Outcome::committed);
    CHECK(weights::decide(page, 1, Outcome::aborted));
    CHECK(weights::decide(page, 2, Outcome::aborted));
    CHECK(weights::decided(page, 0) == Outcome::committed);
    CHECK(weights::decided(page, 1) == Outcome::aborted);
    CHECK(weights::decided(page, 2) == Outcome::aborted);
    CHECK(!weights::decided(page, 3));
    CHECK(weights::decide(page, 4, Outcome::committed));
    CHECK(weights::decided(page, 3) == Outcome::aborted);
    CHECK(weights::decide(page, 5, Outcome::aborted));
    CHECK(weights::decided(page, 4) == Outcome::committed);
}

TEST_CASE("two ranks commit one version together, or none does") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    Tensors engines[2] = {small_model(), small_model()};
    Publisher second = rank_on(ring, trainers[1], 1);  // in any order
    Publisher first = rank_on(ring, trainers[0], 0);
    Publisher* publishers[2] = {&first, &second};
    Subscriber subscribers[2] = {engine_on(ring, engines[0], 0), engine_on(ring, engines[1], 1)};

    // Rank 1's engine is slow: rank 0 does not commit without it.
    Transaction ahead = send(first, trainers[0], 1);
    Transaction behind = send(second, trainers[1], 1);
    std::thread engine_0([&] { CHECK(*take(subscribers[0]) == 1); });
    const auto early = ahead.commit(Deadline::after_ms(100));
    REQUIRE(!early);
    CHECK(early.error().code == Errc::timed_out);
    CHECK(early.error().message.find("ranks 1") != std::string::npos);
    CHECK(stat_ring(ring.name())->policy_version == -1);
    std::thread engine_1([&] { CHECK(*take(subscribers[1]) == 1); });
    std::thread rank_1([&] { REQUIRE_OK(behind.commit(patience())); });
    REQUIRE_OK(ahead.commit(patience()));
    rank_1.join();
    engine_0.join();
    engine_1.join();
    CHECK(stat_ring(ring.name())->policy_version == 1);

    // Rank 1 gives up: rank 0 cannot commit any more.
    Transaction keen = send(first, trainers[0], 2);
    Transaction reluctant = send(second, trainers[1], 2);
    std::thread engine([&] { CHECK(take(subscribers[0]).error().code == Errc::aborted); });
    reluctant.abort("out of memory");
    CHECK(keen.commit(patience()).error().code == Errc::aborted);
    keen.abort();
    engine.join();
    CHECK(subscribers[0].state() == SubscriberState::poisoned);
    CHECK(stat_ring(ring.name())->policy_version == 1);

    std::thread sides[4];
    for (std::size_t i = 0; i < 2; i++) {
        sides[i] = std::thread([&, i] { CHECK(*take(subscribers[i]) == 3); });
        sides[2 + i] = std::thread(
            [&, i] { REQUIRE_OK(send(*publishers[i], trainers[i], 3).commit(patience())); });
    }
    for (auto& side : sides) side.join();
    CHECK((engines[0].holds(3) && engines[1].holds(3)));
    CHECK(stat_weights(ring.name())->size() == 2);
}

TEST_CASE("a rank that voted is bound by what the others decide") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    Publisher first = rank_on(ring, trainers[0], 0);
    Publisher second = rank_on(ring, trainers[1], 1);
    Transaction voted = send(second, trainers[1], 1);
    CHECK(voted.commit(Deadline::after_ms(60)).error().code == Errc::timed_out);
    REQUIRE_OK(send(first, trainers[0], 1).commit(patience()));
    voted.abort();  // too late: it is committed
    CHECK(second.committed_version() == 1);
}

TEST_CASE("who may not become a rank leaves its vote alone") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    Publisher first = rank_on(ring, trainers[0], 0);
    Publisher second = rank_on(ring, trainers[1], 1);
    Transaction voted = send(second, trainers[1], 1);
    CHECK(voted.commit(Deadline::after_ms(60)).error().code == Errc::timed_out);
    const auto link = weights::RingLink::attach(ring.name(), patience(), false);
    REQUIRE_OK(link);
    const auto joined =
        weights::RanksLink::join(ring.name(), {1, 2, link->ring_id(), link->token()}, patience());
    REQUIRE(!joined);
    CHECK(joined.error().code == Errc::busy);
    REQUIRE_OK(send(first, trainers[0], 1).commit(patience()));
    REQUIRE_OK(voted.commit(patience()));
}

TEST_CASE("a vote for another version is none, nor is that of a rank that went") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    auto second = std::make_unique<Publisher>(rank_on(ring, trainers[1], 1));
    REQUIRE_OK(second->begin(5));  // and gives it up before rank 0 has come
    Publisher first = rank_on(ring, trainers[0], 0);
    Transaction voted = send(*second, trainers[1], 6);
    CHECK(voted.commit(Deadline::after_ms(60)).error().code == Errc::timed_out);
    {
        Transaction alone = send(first, trainers[0], 5);
        const auto never = alone.commit(patience());
        REQUIRE(!never);
        CHECK(never.error().code == Errc::aborted);
        CHECK(never.error().message.contains("ranks 1 (at version 6) are at a later version"));
        const auto late = voted.commit(Deadline::after_ms(60));
        REQUIRE(!late);
        CHECK(late.error().code == Errc::timed_out);
        CHECK(late.error().message.contains("rank 0 (at version 5)"));
    }
    CHECK(stat_ring(ring.name())->policy_version == -1);
    voted.abort();
    voted = send(*second, trainers[1], 7);
    CHECK(voted.commit(Deadline::after_ms(60)).error().code == Errc::timed_out);
    voted.abort();
    second.reset();
    Transaction alone = send(first, trainers[0], 8);
    const auto report = alone.commit(patience());
    REQUIRE(!report);
    CHECK(report.error().code == Errc::peer_gone);
    CHECK(stat_ring(ring.name())->policy_version == -1);
}

TEST_CASE("a rank that rank 0 has left behind is told at once") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    Publisher second = rank_on(ring, trainers[1], 1);
    Publisher first = rank_on(ring, trainers[0], 0);
    Transaction ahead = send(first, trainers[0], 7);
    Transaction behind = send(second, trainers[1], 6);
    const auto never = behind.commit(patience());
    REQUIRE(!never);
    CHECK(never.error().code == Errc::aborted);
    CHECK(never.error().message.contains("rank 0 (at version 7) will not decide it"));
    behind.abort();
    ahead.abort();
    std::thread other([&] { REQUIRE_OK(send(first, trainers[0], 8).commit(patience())); });
    REQUIRE_OK(send(second, trainers[1], 8).commit(patience()));
    other.join();
}

TEST_CASE("rank 0 that goes is missed, and its successor joined") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    Publisher second = rank_on(ring, trainers[1], 1);
    {
        Publisher first = rank_on(ring, trainers[0], 0);
        Transaction orphan = send(second, trainers[1], 1);
        CHECK(orphan.commit(Deadline::after_ms(60)).error().code == Errc::timed_out);
        orphan.abort();
    }
    Transaction orphan = send(second, trainers[1], 2);
    CHECK(orphan.commit(patience()).error().code == Errc::peer_gone);
    orphan.abort();
    Publisher first = rank_on(ring, trainers[0], 0);
    std::thread other([&] { REQUIRE_OK(send(first, trainers[0], 3).commit(patience())); });
    REQUIRE_OK(send(second, trainers[1], 3).commit(patience()));
    other.join();
}

TEST_CASE("a subscriber without a rank is told which there are") {
    const TestRing ring;
    Tensors trainers[2] = {small_model(), small_model()};
    Publisher first = rank_on(ring, trainers[0], 0);
    // It does not take the first that comes: the one on its GPU may be the next.
    const auto early =
        Subscriber::attach(ring.name(), trainers[0].list(), {}, Deadline::after_ms(60));
    REQUIRE(!early);
    CHECK(early.error().code == Errc::timed_out);
    Publisher second = rank_on(ring, trainers[1], 1);
    const auto lost = Subscriber::attach(ring.name(), trainers[0].list(), {}, patience());
    REQUIRE(!lost);
    CHECK(lost.error().code == Errc::invalid_argument);
    CHECK(lost.error().message.find("rank 0 on host, rank 1 on host") != std::string::npos);
}

TEST_CASE("a committed version is stamped on rollouts, and stale ones are known") {
    const TestRing ring;
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Producer producer = ring.producer();
    auto opened =
        Stash::open(ring.name(), {.group_size = 2, .max_lag = 1, .batch = BatchTarget::groups(1)});
    REQUIRE_OK(opened);
    Stash& stash = **opened;
    const auto roll_out = [&](const std::string& prompt, std::int64_t told) {
        for (std::uint32_t repetition = 0; repetition < 2; repetition++) {
            const std::vector<std::int32_t> tokens{1, 2, 3};
            Draft draft(prompt);
            draft.meta.repetition_id = repetition;
            draft.meta.reward = repetition;
            if (told >= 0) draft.meta.policy_version_min = draft.meta.policy_version_max = told;
            draft.set(Std::token_ids, tokens);
            REQUIRE(producer.push(draft, patience()) == Push::ok);
        }
    };
    const auto commit = [&](std::int64_t version) {
        REQUIRE_OK(send(publisher, trainer, version).commit(patience()));
    };
    commit(1);
    roll_out("of version 1", -1);
    commit(3);
    roll_out("of version 3", -1);
    roll_out("told 2", 2);
    Batch batch;
    std::vector<std::pair<std::string, std::int64_t>> seen;
    for (int i = 0; i < 2; i++) {
        REQUIRE(stash.next(batch, patience()) == NextBatch::batch);
        seen.emplace_back(batch.sequences()[0].view.instance_id(), batch.policy_versions()[0]);
        REQUIRE_OK(batch.ack(i));
    }
    // Version 1 lags 2 behind: dropped, not shipped.
    CHECK(seen ==
          std::vector<std::pair<std::string, std::int64_t>>{{"of version 3", 3}, {"told 2", 2}});
    CHECK(stash.account().conserved());
    CHECK(stash.account().dropped[static_cast<std::size_t>(DropReason::stale)].records == 2);
}

}  // namespace rollring::test
