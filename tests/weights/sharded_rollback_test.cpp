// Engines of a sharded trainer that stage by difference: their bounds and fallbacks, requests to
// leave a version, ties, and ranks that are started again.

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "sharded_channel.hpp"

namespace rollring::test {
namespace {

SubscriberOptions by_difference(DeltaFallback fallback = DeltaFallback::beside,
                                std::uint64_t list_bytes = 0) {
    return {.staging = Staging::delta, .delta_fallback = fallback, .delta_list_bytes = list_bytes};
}

SubscriberOptions taking_requests() {
    SubscriberOptions options = by_difference();
    options.rollback_when_asked = true;
    return options;
}

// The engine takes a version that all ranks have put; returns it before it is adopted.
Update committed_by(Engine& engine, std::vector<Transaction>& open) {
    Update update = staged_by(engine);
    commit_by_all(open);
    REQUIRE_OK(update.wait_committed(patience()));
    return update;
}

void pass(Trainer& trainer, std::size_t ranks, Engine& engine, std::int64_t version) {
    auto open = put_by_all(trainer, ranks, version);
    Update update = committed_by(engine, open);
    CHECK(update.version() == version);
    REQUIRE_OK(update.adopt(patience()));
    CHECK(engine.shard.holds(version));
}

}  // namespace

TEST_CASE("the list of an engine is bounded over all ranks") {
    std::uint64_t all = 0;
    {
        const TestRing ring;
        Trainer trainer(ring, 4);
        const auto engine = engine_on(ring, 0, 1, by_difference());
        for (const std::int64_t version : {1, 2}) pass(trainer, 4, *engine, version);
        const DeltaReport report = engine->subscriber.delta();
        CHECK(report.way == DeltaWay::list);
        CHECK(report.elements == 78 + 80 + 10 + 112);
        CHECK(report.changed == report.elements);
        all = report.list_bytes;
        const auto stat = stat_weights(ring.name());
        REQUIRE_OK(stat);
        REQUIRE(stat->size() == 4);
        for (const WeightsStat& rank : *stat) {
            const DeltaReport& shown = rank.subscribers.at(0).delta;
            CHECK((shown.version == 2 && shown.changed == 280 && shown.list_bytes == all));
        }
    }
    for (const std::uint64_t bytes : {all, all - 8}) {
        CAPTURE(bytes);
        const TestRing ring;
        Trainer trainer(ring, 4);
        const auto engine = engine_on(ring, 0, 1, by_difference(DeltaFallback::refuse, bytes));
        pass(trainer, 4, *engine, 1);  // serves nothing yet: whatever it takes
        const bool fits = bytes == all;
        CHECK(engine->subscriber.delta().way == (fits ? DeltaWay::list : DeltaWay::in_place));
        if (fits) {
            pass(trainer, 4, *engine, 2);
            continue;
        }
        std::thread taking([&] {
            const auto taken = take(engine->subscriber);
            REQUIRE(!taken);
            CHECK(taken.error().code == Errc::too_large);
            CHECK(taken.error().message.contains("too much has changed: "));
        });
        bool named = false;
        for (const auto& one : trainer.publish(2)) {
            REQUIRE(!one);
            named = named || one.error().message.contains("too much has changed");
        }
        CHECK(named);
        taking.join();
        CHECK(engine->shard.holds(1));
        CHECK(engine->subscriber.live_version() == 1);
        CHECK(engine->subscriber.state() == SubscriberState::ready);
    }
}

TEST_CASE("a version that goes in place is written behind the decision, so that none is mixed") {
    const TestRing ring;
    Trainer trainer(ring, 3);
    const auto engine = engine_on(ring, 1, 2, by_difference(DeltaFallback::in_place, 64));
    pass(trainer, 3, *engine, 1);
    CHECK(engine->subscriber.delta().way == DeltaWay::in_place);
    CHECK(engine->subscriber.rollback().error().message.contains("no version to go back to"));
    {
        auto open = put_by_all(trainer, 3, 2);
        Update update = staged_by(*engine);
        CHECK(engine->shard.holds(1));
        for (auto& one : open) one.abort("the loss is not a number");
        CHECK(update.adopt(patience()).error().code == Errc::aborted);
    }
    CHECK(engine->shard.holds(1));
    CHECK(engine->subscriber.state() == SubscriberState::ready);
    auto open = put_by_all(trainer, 3, 3);
    {
        const Update dropped = committed_by(*engine, open);
        CHECK(engine->shard.holds(1));
    }
    Update update = staged_by(*engine);
    CHECK(update.version() == 3);
    REQUIRE_OK(update.adopt(patience()));
    CHECK(engine->shard.holds(3));
}

TEST_CASE("engines of a sharded trainer are asked to leave a version at each of its ranks") {
    const TestRing ring;
    Trainer trainer(ring, 2);
    const auto takes = engine_on(ring, 0, 3, taking_requests());
    const auto takes_none = engine_on(ring, 1, 3, by_difference());
    const auto copies = engine_on(ring, 2, 3);
    for (const std::int64_t version : {1, 2}) {
        auto open = put_by_all(trainer, 2, version);
        std::array updates{staged_by(*takes), staged_by(*takes_none), staged_by(*copies)};
        commit_by_all(open);
        for (Update& update : updates) REQUIRE_OK(update.adopt(patience()));
    }
    CHECK(takes->subscriber.next(Deadline::now()).error().code == Errc::timed_out);
    std::thread serving([&] {
        const auto asked = takes->subscriber.next(patience());  // a wait that the request ends
        REQUIRE(!asked);
        CHECK(asked.error().code == Errc::rollback_asked);
        CHECK(asked.error().message.contains("'engine-0' is asked to leave version 2"));
        CHECK(takes->shard.holds(2));
        REQUIRE_OK(takes->subscriber.rollback());
        CHECK(takes->shard.holds(1));
        // The other rank's request finds the version left.
        CHECK(takes->subscriber.next(soon()).error().code == Errc::timed_out);
    });
    const auto report = ask_rollback(ring.name(), patience());
    serving.join();
    REQUIRE_OK(report);
    CHECK(report->version == 2);
    REQUIRE(report->engines.size() == 6);
    bool went_back = false;
    for (const RollbackAnswer& answer : report->engines) {
        if (answer.subscriber == "engine-0") {
            went_back = went_back || answer.outcome == RollbackOutcome::rolled_back;
            CHECK((answer.outcome == RollbackOutcome::rolled_back ||
                   answer.outcome == RollbackOutcome::not_live));
            CHECK(answer.live_version == 1);
        } else {
            CHECK(answer.outcome == RollbackOutcome::refused);
            CHECK(answer.why.contains("rollback_when_asked"));
        }
    }
    CHECK(went_back);
    const auto again = ask_rollback(ring.name(), Deadline::now());
    REQUIRE_OK(again);
    CHECK(again->engines.at(0).outcome == RollbackOutcome::not_live);
    CHECK(takes->subscriber.next(soon()).error().code == Errc::timed_out);

    // The version before the next one is the one that it went back to; then there is none.
    auto open = put_by_all(trainer, 2, 3);
    std::array updates{staged_by(*takes), staged_by(*takes_none), staged_by(*copies)};
    commit_by_all(open);
    for (Update& update : updates) REQUIRE_OK(update.adopt(patience()));
    CHECK(takes->shard.holds(3));
    REQUIRE_OK(takes->subscriber.rollback());
    CHECK((takes->shard.holds(1) && takes->subscriber.live_version() == 1));
}

TEST_CASE("an engine of a sharded trainer says why it does not go back") {
    const TestRing ring;
    Trainer trainer(ring, 2);
    const auto engine = engine_on(ring, 0, 1, [] {
        SubscriberOptions options = taking_requests();
        options.delta_fallback = DeltaFallback::in_place;
        options.delta_list_bytes = 64;
        return options;
    }());
    pass(trainer, 2, *engine, 1);
    const auto ask = [&] {
        const auto report = ask_rollback(ring.name(), Deadline::now());
        REQUIRE_OK(report);
        REQUIRE(report->engines.size() == 2);
        return report->engines;
    };
    for (const RollbackAnswer& answer : ask()) CHECK(answer.outcome == RollbackOutcome::silent);
    CHECK(engine->subscriber.next(soon()).error().code == Errc::timed_out);
    std::atomic<bool> answered = false;
    std::thread serving([&] {
        while (!answered) {
            CHECK(engine->subscriber.next(soon()).error().code == Errc::timed_out);
        }
    });
    const auto report = ask_rollback(ring.name(), patience());
    answered = true;
    serving.join();
    REQUIRE_OK(report);
    for (const RollbackAnswer& answer : report->engines) {
        CHECK(answer.outcome == RollbackOutcome::refused);
        CHECK(answer.why.contains("no version to go back to"));
    }
    CHECK(engine->shard.holds(1));
}

TEST_CASE("an engine that went back is not sent the version again, whatever ends the next one") {
    const TestRing ring;
    Trainer trainer(ring, 3);
    const auto engine = engine_on(ring, 0, 2, by_difference());
    for (const std::int64_t version : {1, 2}) pass(trainer, 3, *engine, version);
    REQUIRE_OK(engine->subscriber.rollback());
    CHECK(engine->shard.holds(1));
    for (std::int64_t version = 3; version <= 5; version++) {
        auto open = put_by_all(trainer, 3, version);
        {
            Update update = staged_by(*engine);
            CHECK(update.version() == version);
            for (auto& one : open) one.abort("the loss is not a number");
            CHECK(update.adopt(patience()).error().code == Errc::aborted);
        }
        // The ranks offer version 2 again to engines that lack it.
        CHECK(engine->subscriber.next(Deadline::now()).error().code == Errc::timed_out);
        CHECK(trainer.rank(1).publisher.behind() == 0);
        CHECK((engine->shard.holds(1) && engine->subscriber.live_version() == 1));
    }
    pass(trainer, 3, *engine, 6);
    REQUIRE_OK(engine->subscriber.rollback());
    CHECK(engine->shard.holds(1));
}

TEST_CASE("ranks that are started again offer the version to engines that compare") {
    for (const std::uint32_t started : {0U, 1U}) {
        CAPTURE(started);
        const TestRing ring;
        Trainer trainer(ring, 2);
        {
            const auto early = engine_on(ring, 0, 2, by_difference());
            for (const std::int64_t version : {1, 2}) pass(trainer, 2, *early, version);
        }
        trainer.start(started);
        const auto engine = engine_on(ring, 0, 2, by_difference());
        TrainerRank& rank = trainer.rank(started);
        rank.shard.fill(2);
        REQUIRE_OK(rank.publisher.resume(2));
        auto again = rank.publisher.begin_again();
        REQUIRE_OK(again);
        REQUIRE_OK(again->put_all(patience()));
        REQUIRE_OK(again->publish());
        Update update = staged_by(*engine);
        CHECK(update.version() == 2);
        REQUIRE_OK(again->commit(patience()));
        REQUIRE_OK(update.adopt(patience()));
        CHECK(engine->shard.holds(2));
        pass(trainer, 2, *engine, 3);
        REQUIRE_OK(engine->subscriber.rollback());
        CHECK(engine->shard.holds(2));
    }
}

}  // namespace rollring::test
