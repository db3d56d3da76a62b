// Sharded trainers: a version reaches engines of another cut as a whole, or not at all.

#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "sharded_channel.hpp"

namespace rollring::test {

TEST_CASE("shards of 1 to 8 ranks reach engines of 1 to 8 ranks") {
    for (const std::uint32_t ranks : {1U, 2U, 4U, 8U}) {
        for (const std::uint32_t engines : {1U, 2U, 4U, 8U}) {
            CAPTURE(ranks);
            CAPTURE(engines);
            const TestRing ring;
            Trainer trainer(ring, ranks);
            std::vector<std::unique_ptr<Engine>> all;
            all.reserve(engines);
            for (std::uint32_t i = 0; i < engines; i++) all.push_back(engine_on(ring, i, engines));
            for (std::int64_t version = 1; version <= 3; version++) {
                std::vector<std::thread> threads;
                threads.reserve(engines);
                for (auto& engine : all) {
                    threads.emplace_back([&] { CHECK(*take(engine->subscriber) == version); });
                }
                require_all(trainer.publish(version));
                for (auto& thread : threads) thread.join();
                for (auto& engine : all) CHECK(engine->shard.holds(version));
                CHECK(stat_ring(ring.name())->policy_version == version);
            }
        }
    }
}

TEST_CASE("nothing is written before the commit, and nothing at all if there is none") {
    const TestRing ring;
    Trainer trainer(ring, 2);
    const auto engine = engine_on(ring, 0, 1);
    std::thread first([&] { CHECK(*take(engine->subscriber) == 1); });
    require_all(trainer.publish(1));
    first.join();

    std::thread second([&] {
        auto update = engine->subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        CHECK(engine->shard.holds(1));
        REQUIRE_OK(update->stage(patience()));
        CHECK(engine->shard.holds(1));
        REQUIRE_OK(update->wait_committed(patience()));
        CHECK(engine->shard.holds(1));
        REQUIRE_OK(update->adopt(patience()));
        CHECK(engine->shard.holds(2));
    });
    require_all(trainer.publish(2));
    second.join();

    // Rank 1 gives up; the engine has read both ranks' parts.
    trainer.rank(0).shard.fill(3);
    Transaction keen = [&] {
        auto open = trainer.rank(0).publisher.begin(3);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        return std::move(*open);
    }();
    std::thread third([&] {
        auto update = engine->subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        const auto never = update->adopt(patience());
        REQUIRE(!never);
        CHECK(never.error().code == Errc::aborted);
    });
    trainer.rank(1).shard.fill(3);
    auto reluctant = trainer.rank(1).publisher.begin(3);
    REQUIRE_OK(reluctant);
    REQUIRE_OK(reluctant->put_all(patience()));
    REQUIRE_OK(reluctant->publish());
    REQUIRE_OK(reluctant->wait_staged(patience()));
    reluctant->abort("out of memory");
    third.join();
    CHECK(keen.commit(patience()).error().code == Errc::aborted);
    keen.abort();
    CHECK(engine->shard.holds(2));
    CHECK(engine->subscriber.live_version() == 2);
    CHECK(engine->subscriber.state() == SubscriberState::ready);
    CHECK(engine->subscriber.next(soon()).error().code == Errc::timed_out);  // 2 is not sent again
    std::thread fourth([&] { CHECK(*take(engine->subscriber) == 4); });
    require_all(trainer.publish(4));
    fourth.join();
    CHECK(engine->shard.holds(4));
}

TEST_CASE("engines that come late get the committed version, also after versions that failed") {
    const TestRing ring;
    Trainer trainer(ring, 2);
    require_all(trainer.publish(1));
    const auto first = engine_on(ring, 0, 2);
    CHECK(*take(first->subscriber) == 1);
    CHECK(first->shard.holds(1));

    for (std::int64_t version = 2; version <= 6; version++) {
        for (std::size_t rank = 0; rank < 2; rank++) {  // both have overwritten their tensors
            trainer.rank(rank).shard.fill(version);
            auto open = trainer.rank(rank).publisher.begin(version);
            REQUIRE_OK(open);
            REQUIRE_OK(open->put_all(patience()));
            open->abort("not this one");
        }
    }
    const auto second = engine_on(ring, 1, 2);
    CHECK(*take(second->subscriber) == 1);
    CHECK(second->shard.holds(1));
    CHECK(first->shard.holds(1));

    // One that comes while a version is open, which fails then, gets the one before.
    std::vector<Transaction> open;
    for (std::size_t rank = 0; rank < 2; rank++) {
        trainer.rank(rank).shard.fill(7);
        auto begun = trainer.rank(rank).publisher.begin(7);
        REQUIRE_OK(begun);
        REQUIRE_OK(begun->put_all(patience()));
        REQUIRE_OK(begun->publish());
        open.push_back(std::move(*begun));
    }
    EngineShard shard(0, 1);
    auto third = Subscriber::attach(ring.name(), shard.list(),
                                    {.name = "third", .layout = shard.layout()}, patience());
    REQUIRE_OK(third);
    {
        auto update = third->next(patience());
        REQUIRE_OK(update);
        CHECK(update->version() == 7);
        REQUIRE_OK(update->load(patience()));
        for (auto& one : open) one.abort("not this one either");
        REQUIRE_OK(update->stage(patience()));
        CHECK(update->adopt(patience()).error().code == Errc::aborted);
    }
    CHECK(shard.holds(-1));
    CHECK(*take(*third) == 1);
    CHECK(shard.holds(1));

    const auto again = [&] {
        EngineShard held(0, 1);
        return Subscriber::attach(ring.name(), held.list(),
                                  {.name = "fourth", .held_version = 1, .layout = held.layout()},
                                  patience());
    }();
    REQUIRE_OK(again);
    CHECK(again->live_version() == 1);
}

TEST_CASE("an engine that gives a version up after its vote gets it once it is committed") {
    for (const std::size_t ranks : {1U, 3U}) {
        CAPTURE(ranks);
        const TestRing ring;
        Trainer trainer(ring, static_cast<std::uint32_t>(ranks));
        const auto engine = engine_on(ring, 0, 2);
        const auto other = engine_on(ring, 1, 2);
        auto open = put_by_all(trainer, ranks, 1);
        {
            std::optional<Update> given_up(staged_by(*engine));
            auto kept = staged_by(*other);
            for (auto& one : open) REQUIRE_OK(one.wait_staged(patience()));
            std::thread adopting([&] { CHECK(kept.adopt(patience())); });
            given_up.reset();
            commit_by_all(open);
            adopting.join();
        }
        CHECK(other->shard.holds(1));
        CHECK(*take(engine->subscriber) == 1);
        CHECK(engine->shard.holds(1));
        // And again behind the commit.
        open = put_by_all(trainer, ranks, 2);
        {
            auto late = staged_by(*engine);
            std::thread taking([&] { CHECK(*take(other->subscriber) == 2); });
            commit_by_all(open);
            REQUIRE_OK(late.wait_committed(patience()));
            taking.join();
        }
        CHECK(engine->shard.holds(1));
        CHECK(*take(engine->subscriber) == 2);
        CHECK(engine->shard.holds(2));
        // Later versions reach both engines.
        open = put_by_all(trainer, ranks, 3);
        std::thread first([&] { CHECK(*take(engine->subscriber) == 3); });
        std::thread second([&] { CHECK(*take(other->subscriber) == 3); });
        commit_by_all(open);
        first.join();
        second.join();
        CHECK(engine->shard.holds(3));
        CHECK(other->shard.holds(3));
    }
}

namespace {

// These ranks have been started, and hold a version that was committed before.
std::vector<Transaction> put_again(Trainer& trainer, const std::vector<std::uint32_t>& ranks,
                                   std::int64_t version) {
    std::vector<Transaction> open;
    for (const std::uint32_t rank : ranks) {
        trainer.rank(rank).shard.fill(version);
        REQUIRE_OK(trainer.rank(rank).publisher.resume(version));
        auto again = trainer.rank(rank).publisher.begin_again();
        REQUIRE_OK(again);
        REQUIRE_OK(again->put_all(patience()));
        REQUIRE_OK(again->publish());
        open.push_back(std::move(*again));
    }
    return open;
}

// One engine waits for the version, one comes behind it; both take the next one.
void take_again(const TestRing& ring, Trainer& trainer, const std::vector<std::uint32_t>& ranks,
                std::int64_t version) {
    const auto early = engine_on(ring, 0, 2);
    CHECK(early->subscriber.next(soon()).error().code == Errc::timed_out);
    auto open = put_again(trainer, ranks, version);
    std::thread taking([&] { CHECK(*take(early->subscriber) == version); });
    commit_by_all(open);
    taking.join();
    CHECK(early->shard.holds(version));
    const auto late = engine_on(ring, 1, 2);
    CHECK(*take(late->subscriber) == version);
    CHECK(late->shard.holds(version));
    CHECK(stat_ring(ring.name())->policy_version == version);

    std::thread first([&] { CHECK(*take(early->subscriber) == version + 1); });
    std::thread second([&] { CHECK(*take(late->subscriber) == version + 1); });
    require_all(trainer.publish(version + 1));
    first.join();
    second.join();
    CHECK(early->shard.holds(version + 1));
    CHECK(late->shard.holds(version + 1));
}

}  // namespace

TEST_CASE("ranks that are started again offer the version that they resume") {
    using Ranks = std::vector<std::uint32_t>;
    for (const Ranks& started : {Ranks{0, 1, 2}, Ranks{0}, Ranks{2}, Ranks{0, 1}}) {
        CAPTURE(started);
        const TestRing ring;
        Trainer trainer(ring, 3);
        require_all(trainer.publish(1));
        require_all(trainer.publish(2));
        for (const std::uint32_t rank : started) trainer.start(rank);
        take_again(ring, trainer, started, 2);
    }
    const TestRing fresh;
    Trainer trainer(fresh, 3);
    take_again(fresh, trainer, {2, 1, 0}, 7);
}

TEST_CASE("an engine that ends before it has staged a version aborts it") {
    const TestRing ring;
    Trainer trainer(ring, 2);
    const auto stays = engine_on(ring, 0, 2);
    auto goes = engine_on(ring, 1, 2);
    std::latch opened(1);
    std::thread keeps([&] {
        auto update = stays->subscriber.next(patience());
        opened.count_down();
        REQUIRE_OK(update);
        auto ends = update->load(patience());
        if (ends) ends = update->stage(patience());
        if (ends) ends = update->adopt(patience());
        REQUIRE(!ends);
        CHECK(ends.error().code == Errc::aborted);
    });
    std::thread leaves([&] {
        {
            const auto update = goes->subscriber.next(patience());
            REQUIRE_OK(update);
            // Until then: a version that was rejected before it was opened is never returned.
            opened.wait();
        }
        goes.reset();
    });
    const auto results = trainer.publish(1);
    keeps.join();
    leaves.join();
    bool named = false;
    for (const auto& one : results) {
        REQUIRE(!one);
        named = named || one.error().message.contains("'engine-1'");
    }
    CHECK(named);
    CHECK(stays->shard.holds(-1));
    CHECK(stat_ring(ring.name())->policy_version == -1);
    std::thread alone([&] { CHECK(*take(stays->subscriber) == 2); });
    require_all(trainer.publish(2));
    alone.join();
    CHECK(stays->shard.holds(2));
}

TEST_CASE("layouts that do not fit are refused by name") {
    const TestRing ring;
    TrainerShard shard(0, 1);
    const auto publisher_with = [&](PublisherOptions options) {
        return Publisher::create(ring.name(), shard.list(), options);
    };
    CHECK(publisher_with({.layout = {std::byte{1}}}).error().code == Errc::bad_manifest);
    const auto other = publisher_with({.layout = TrainerShard(1, 2).layout()});
    CHECK(other.error().code == Errc::invalid_argument);
    CHECK(other.error().message.contains("memory 'embed' of rank 1"));
    const auto short_slots =
        publisher_with({.slots = 2, .slot_bytes = 64, .layout = shard.layout()});
    CHECK(short_slots.error().message.contains("hold the committed version and the next one"));
    const auto one_slot = publisher_with({.slots = 1, .layout = shard.layout()});
    CHECK(one_slot.error().message.contains("have 1 parts each, and there are 1"));
    const auto sizes = publisher_with({.layout = TrainerShard(0, 2).layout()});
    CHECK(sizes.error().message.contains("tensor 'embed' is published with"));

    EngineShard engine(0, 1);
    const auto engine_with = [&](const SubscriberOptions& options) {
        return Subscriber::attach(ring.name(), engine.list(), options, patience());
    };
    {
        auto whole = publisher_with({});
        REQUIRE_OK(whole);
        const auto mixed = engine_with({.layout = engine.layout()});
        CHECK(mixed.error().code == Errc::layout_mismatch);
        CHECK(mixed.error().message.contains("rank 0 of the trainer publishes whole tensors"));
    }
    auto publisher = publisher_with({.layout = shard.layout()});
    REQUIRE_OK(publisher);
    CHECK(engine_with({.rank = 0, .layout = engine.layout()}).error().code ==
          Errc::invalid_argument);
    WeightLayout several;
    REQUIRE_OK(several.add(*WeightLayout::from_bytes(EngineShard(0, 2).layout())));
    REQUIRE_OK(several.add(*WeightLayout::from_bytes(EngineShard(1, 2).layout())));
    CHECK(engine_with({.layout = several.to_bytes()}).error().code == Errc::invalid_argument);
    const auto elsewhere = engine_with({.layout = EngineShard(0, 2).layout()});
    CHECK(elsewhere.error().code == Errc::layout_mismatch);
    CHECK(elsewhere.error().message.contains("tensor 'embed' has 96 elements"));
    const auto engine_of = [&](const std::vector<WeightTensor>& tensors) {
        return Subscriber::attach(ring.name(), tensors, {.layout = engine.layout()}, patience());
    };
    auto tensors = engine.list();
    tensors.push_back(tensors.front());
    CHECK(engine_of(tensors).error().message.contains("tensor 'embed' is given twice"));
    tensors.back().name = "other";
    CHECK(engine_of(tensors).error().code == Errc::layout_mismatch);
    CHECK(engine_of(tensors).error().message.contains("names tensor 'other', so no version"));
    tensors.pop_back();
    tensors.front().data = nullptr;
    CHECK(engine_of(tensors).error().message.contains("tensor 'embed' has no address"));
    auto fine = engine_with({.layout = engine.layout()});
    REQUIRE_OK(fine);
    CHECK(fine->tensors().size() == 4);
    CHECK(fine->tensors()[0].bytes == 13 * 6 * 2);
    CHECK(fine->rollback().error().code == Errc::invalid_argument);
    // It does not lend parts.
    std::thread taking([&] {
        auto update = fine->next(patience());
        REQUIRE_OK(update);
        CHECK(update->part(0, patience()).error().code == Errc::invalid_argument);
        CHECK(update->stage(patience()).error().code == Errc::invalid_argument);  // not loaded
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(update->adopt(patience()));
    });
    shard.fill(1);
    auto open = publisher->begin(1);
    REQUIRE_OK(open);
    REQUIRE_OK(open->put_all(patience()));
    REQUIRE_OK(open->publish());
    REQUIRE_OK(open->commit(patience()));
    taking.join();
    CHECK(publisher->begin_again().error().code == Errc::unsupported);
    CHECK(engine.holds(1));
}

}  // namespace rollring::test
