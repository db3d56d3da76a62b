// Engines of a sharded trainer whose tensors they read where they lie: the trainer keeps these
// unchanged until its commit returns, and no engine serves bytes that it read there later.

#include <optional>
#include <thread>

#include "direct_shards.hpp"

namespace rollring::test {
namespace {

struct ReadingWay {
    const char* name;
    SubscriberOptions options;
    bool copies_late;  // from the trainer's tensors, after the decision
};

const std::vector<ReadingWay>& all_ways() {
    static const std::vector<ReadingWay> all{
        {"copied within the device", {.device = trainer_gpu}, true},
        {"copied from another device", {.device = engine_gpu, .stage_remote = false}, true},
        {"fetched before", {.device = engine_gpu}, false},
        {"by difference",
         {.device = trainer_gpu,
          .staging = rollring::Staging::delta,
          .delta_fallback = DeltaFallback::beside},
         false},
        {"by difference, over a link",
         {.device = engine_gpu,
          .staging = rollring::Staging::delta,
          .delta_fallback = DeltaFallback::beside},
         false},
        {"by difference, without room",
         {.device = trainer_gpu,
          .staging = rollring::Staging::delta,
          .delta_fallback = DeltaFallback::in_place,
          .delta_list_bytes = 1},
         true},
    };
    return all;
}

bool takes(DirectEngine& engine, std::int64_t version) {
    auto update = engine.subscriber.next(patience());
    return update && update->version() == version && update->load(patience()) &&
           update->stage(patience()) && update->adopt(patience());
}

// Version 1, which the engine drops after its vote.
void commit_past(DirectTrainer& trainer, DirectEngine& engine) {
    auto open = trainer.put(1);
    {
        const Update update = engine.stage();
        for (auto& one : open) REQUIRE_OK(one.wait_staged(patience()));
    }
    DirectTrainer::require_committed(open);
    trainer.scribble();
}

// The committed version once more, of one rank.
Transaction send_again(DirectRank& rank) {
    auto again = rank.publisher.begin_again();
    REQUIRE_OK(again);
    REQUIRE_OK(again->put_all(patience()));
    REQUIRE_OK(again->publish());
    return std::move(*again);
}

}  // namespace

TEST_CASE("engines take shards from the trainer's own tensors") {
    for (const std::uint32_t ranks : {1U, 3U}) {
        for (const ReadingWay& way : all_ways()) {
            CAPTURE(ranks);
            CAPTURE(way.name);
            DirectTrainer trainer(ranks);
            CHECK(trainer.rank(0).publisher.memory() == PayloadMemory::direct);
            const auto engine = trainer.attach(way.options);
            for (std::int64_t version = 1; version <= 4; version++) {
                std::thread taking([&] { CHECK(takes(*engine, version)); });
                auto open = trainer.put(version);
                DirectTrainer::require_committed(open);
                trainer.scribble();
                taking.join();
                CHECK(engine->shard.holds(version));
            }
            CHECK(engine->subscriber.memory() == PayloadMemory::direct);
        }
    }
}

TEST_CASE("commit returns once no engine needs the tensors any more") {
    for (const ReadingWay& way : all_ways()) {
        CAPTURE(way.name);
        DirectTrainer trainer(2);
        const auto engine = trainer.attach(way.options);
        for (const std::int64_t version : {1, 2}) {
            auto open = trainer.put(version);
            Update update = engine->stage();
            if (way.copies_late) {
                std::thread deciding([&] { CHECK(open[0].decide(patience())); });
                CHECK(open[1].decide(patience()));
                deciding.join();
                for (const auto& one : DirectTrainer::commit(open, soon())) {
                    REQUIRE(!one);
                    CHECK(one.error().code == Errc::timed_out);
                    CHECK(one.error().message.contains("is committed, but by the deadline"));
                }
                CHECK(trainer.rank(1).publisher.begin(version + 1).error().code == Errc::busy);
                REQUIRE_OK(update.adopt(patience()));
            }
            DirectTrainer::require_committed(open);
            trainer.scribble();
            if (!way.copies_late) REQUIRE_OK(update.adopt(patience()));
            CHECK(engine->shard.holds(version));
        }
    }
}

TEST_CASE("a trainer that waits no longer for an engine's copy goes on without it") {
    DirectTrainer trainer(2);
    FakeDevice& gpu = fake_device(trainer_gpu);
    const auto engine = trainer.attach({.device = trainer_gpu});
    {
        std::thread taking([&] { CHECK(takes(*engine, 1)); });
        auto open = trainer.put(1);
        DirectTrainer::require_committed(open);
        taking.join();
    }
    auto open = trainer.put(2);
    Update update = engine->stage();
    for (const auto& one : DirectTrainer::commit(open, soon())) CHECK(!one);
    SUBCASE("before it copies") {
        open.clear();
        trainer.scribble();
        CHECK(update.adopt(patience()).error().code == Errc::expelled);
        CHECK(engine->shard.holds(1));
        CHECK(engine->subscriber.state() == SubscriberState::ready);
    }
    SUBCASE("while it copies") {
        gpu.stopped = true;
        CHECK(update.adopt(soon()).error().code == Errc::timed_out);
        open.clear();
        trainer.scribble();
        gpu.go_on();
        CHECK(update.adopt(patience()).error().code == Errc::expelled);
        CHECK(engine->subscriber.state() == SubscriberState::poisoned);
    }
    CHECK(trainer.rank(0).publisher.committed_version() == 2);
}

TEST_CASE("engines that have all of a version adopt it after the trainer's end") {
    for (const ReadingWay& way : all_ways()) {
        if (way.copies_late) continue;
        CAPTURE(way.name);
        DirectTrainer trainer(2);
        auto engine = trainer.attach(way.options);
        auto open = trainer.put(1);
        Update update = engine->stage();
        DirectTrainer::require_committed(open);
        trainer.scribble();
        std::thread ending([&] { trainer.end(); });
        CHECK(engine->subscriber.next(soon()).error().code == Errc::busy);
        REQUIRE_OK(update.adopt(patience()));
        CHECK(engine->shard.holds(1));
        CHECK(engine->subscriber.next(patience()).error().code == Errc::peer_gone);
        engine.reset();  // the trainer's tensors are in use until then
        ending.join();
    }
}

TEST_CASE("an update that is dropped after its vote comes again with resend") {
    for (const ReadingWay& way : all_ways()) {
        CAPTURE(way.name);
        DirectTrainer trainer(2);
        const auto engine = trainer.attach(way.options);
        commit_past(trainer, *engine);
        CHECK(engine->shard.holds(-1));
        CHECK(engine->subscriber.next(soon()).error().code == Errc::timed_out);
        CHECK(trainer.rank(1).publisher.behind() == 1);
        std::thread taking([&] { CHECK(takes(*engine, 1)); });
        trainer.resend(1);
        taking.join();
        CHECK(engine->shard.holds(1));
        CHECK(trainer.rank(0).publisher.behind() == 0);
    }
}

TEST_CASE("an engine that comes while the ranks decide takes nothing that changes under it") {
    for (const ReadingWay& way : all_ways()) {
        CAPTURE(way.name);
        DirectTrainer trainer(2);
        SubscriberOptions early = way.options;
        early.name = "early";
        const auto first = trainer.attach(early);
        auto open = trainer.put(1);
        Update staged = first->stage();
        for (auto& one : open) REQUIRE_OK(one.wait_staged(patience()));
        const auto late = trainer.attach(way.options);
        Update update = late->next();
        REQUIRE_OK(update.load(patience()));
        std::thread adopting([&] { CHECK(staged.adopt(patience())); });
        DirectTrainer::require_committed(open);
        adopting.join();
        trainer.scribble();
        const auto refusal = update.stage(patience());
        REQUIRE(!refusal);
        CHECK(refusal.error().message.contains("which came late"));
        CHECK((first->shard.holds(1) && late->shard.holds(-1)));
        CHECK(late->subscriber.next(soon()).error().code == Errc::timed_out);
        CHECK(trainer.rank(0).publisher.behind() == 1);
        std::thread taking([&] { CHECK(takes(*late, 1)); });
        trainer.resend(1);
        taking.join();
        CHECK(late->shard.holds(1));
    }
}

TEST_CASE("a version that is aborted leaves engines as they were, and the next one comes") {
    for (const ReadingWay& way : all_ways()) {
        CAPTURE(way.name);
        DirectTrainer trainer(2);
        const auto engine = trainer.attach(way.options);
        for (const bool staged : {true, false}) {
            const std::int64_t version = staged ? 1 : 3;
            auto open = trainer.put(version);
            Update update = engine->next();
            REQUIRE_OK(update.load(patience()));
            if (staged) REQUIRE_OK(update.stage(patience()));
            open.clear();
            trainer.scribble();
            const auto over = staged ? update.adopt(patience()) : update.stage(patience());
            REQUIRE(!over);
            CHECK(over.error().code == Errc::aborted);
            CHECK(engine->shard.holds(staged ? -1 : 2));
            std::thread taking([&] { CHECK(takes(*engine, version + 1)); });
            open = trainer.put(version + 1);
            DirectTrainer::require_committed(open);
            trainer.scribble();
            taking.join();
            CHECK(engine->shard.holds(version + 1));
        }
    }
}

TEST_CASE("a trainer that closes once an engine has copied does not poison it") {
    DirectTrainer trainer(1);
    FakeDevice& gpu = fake_device(trainer_gpu);
    auto engine = trainer.attach({.device = trainer_gpu});
    auto open = trainer.put(1);
    Update update = engine->stage();
    REQUIRE_OK(open.front().decide(patience()));
    gpu.stopped = true;
    CHECK(update.adopt(soon()).error().code == Errc::timed_out);
    gpu.go_on();
    DirectTrainer::require_committed(open);
    trainer.scribble();
    std::thread ending([&] { trainer.end(); });
    CHECK(engine->subscriber.next(soon()).error().code == Errc::busy);
    const auto is_there = [&] {
        const auto seen = stat_weights(trainer.ring.name());
        return seen && !seen->empty();
    };
    while (is_there()) weights::nap();
    REQUIRE_OK(update.adopt(patience()));
    CHECK(engine->shard.holds(1));
    CHECK(engine->subscriber.state() == SubscriberState::ready);
    engine.reset();
    ending.join();
}

TEST_CASE("a rank that gives its resend up while an engine reads it leaves no mixture") {
    for (const ReadingWay& way : all_ways()) {
        CAPTURE(way.name);
        DirectTrainer trainer(2);
        const auto engine = trainer.attach(way.options);
        std::vector<Transaction> open;
        for (const std::size_t i : {0U, 1U}) {
            DirectRank& rank = trainer.rank(i);
            rank.shard.fill(5);
            REQUIRE_OK(rank.publisher.resume(5));  // the ring has not had it
            open.push_back(send_again(rank));
        }
        Update update = engine->next();
        REQUIRE_OK(update.load(patience()));
        open[1].abort("out of memory");
        trainer.rank(1).shard.fill(1000);
        CHECK(update.stage(patience()).error().code == Errc::aborted);
        CHECK(open[0].commit(patience()).error().code == Errc::rejected);  // and waits no longer
        open.clear();
        CHECK(engine->shard.holds(-1));
        std::thread taking([&] { CHECK(takes(*engine, 5)); });
        trainer.resend(5);
        taking.join();
        CHECK(engine->shard.holds(5));
    }
}

TEST_CASE("a resend ends once another rank has begun a later version") {
    DirectTrainer trainer(2);
    const auto engine = trainer.attach({.device = engine_gpu});
    commit_past(trainer, *engine);
    Transaction again = send_again(trainer.rank(0));
    auto later = trainer.rank(1).publisher.begin(2);
    REQUIRE_OK(later);
    CHECK(again.commit(patience()).error().code == Errc::aborted);
}

TEST_CASE("an engine that comes while a version is sent again holds that up for nobody") {
    DirectTrainer trainer(1);
    const auto engine = trainer.attach({.device = engine_gpu});
    commit_past(trainer, *engine);
    trainer.rank(0).shard.fill(1);
    Transaction again = send_again(trainer.rank(0));
    const auto late = trainer.attach({.name = "late", .device = engine_gpu});
    REQUIRE_OK(trainer.rank(0).publisher.wait_subscribers(2, patience()));
    std::thread taking([&] { CHECK(takes(*engine, 1)); });
    CHECK(again.commit(patience())->subscribers == 1);
    taking.join();
    CHECK(trainer.rank(0).publisher.behind() == 1);
    std::thread late_taking([&] { CHECK(takes(*late, 1)); });
    trainer.resend(1);
    late_taking.join();
    CHECK(late->shard.holds(1));
}

TEST_CASE("ranks with slots beside ranks without are refused by name") {
    DirectTrainer trainer(1);
    trainer.end();
    const auto first = trainer.start(0, 2, PayloadMemory::direct);
    const auto second = trainer.start(1, 2, PayloadMemory::vmm);
    EngineShard shard(0, 1, DirectTrainer::period);
    const auto refusal = trainer.try_attach(shard, {.device = engine_gpu});
    REQUIRE(!refusal);
    CHECK(refusal.error().code == Errc::unsupported);
    CHECK(refusal.error().message.contains("rank 1 with vmm: give all ranks direct, or none"));
}

}  // namespace rollring::test
