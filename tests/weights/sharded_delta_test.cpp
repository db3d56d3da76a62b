// Staging by difference over the ranks of a sharded trainer: every bit after each version, whatever
// share of the values changed; the old ones until the decision, and again after a rollback.

#include <thread>

#include "shard_world.hpp"
#include "sharded_channel.hpp"

namespace rollring::test {
namespace {

// Engines of each fallback. The list of some has room for little.
void attach_all(ShardWorld& world) {
    const DeltaFallback fallbacks[] = {DeltaFallback::beside, DeltaFallback::refuse,
                                       DeltaFallback::in_place};
    std::size_t next = world.seed();
    for (RandomEngine& engine : world.engines()) {
        engine.options.staging = Staging::delta;
        engine.options.delta_fallback = fallbacks[next++ % 3];
        const bool whole = engine.options.delta_fallback == DeltaFallback::refuse;
        engine.options.delta_list_bytes = whole ? 1 << 20 : 100;
        world.attach(engine);
    }
}

Update staged(RandomEngine& engine, std::int64_t version) {
    auto update = engine.subscriber->next(patience());
    REQUIRE_OK(update);
    CHECK(update->version() == version);
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE((engine.held.bytes == engine.wanted));
    return std::move(*update);
}

void adopt(ShardWorld& world, RandomEngine& engine, Update& update) {
    REQUIRE_OK(update.wait_committed(patience()));
    REQUIRE((engine.held.bytes == engine.wanted));
    REQUIRE_OK(update.adopt(patience()));
    Bytes now = world.values_for(engine);
    REQUIRE((engine.held.bytes == now));
    const DeltaReport report = engine.subscriber->delta();
    CHECK(report.version == update.version());
    engine.before.reset();
    if (report.way != DeltaWay::in_place) {
        engine.before = std::move(engine.wanted);
        engine.live_before = engine.live;
    }
    engine.wanted = std::move(now);
    engine.live = update.version();
}

// Every engine takes the version, some of them only when it is offered again.
void pass(ShardWorld& world, std::int64_t version) {
    auto open = world.put(version);
    std::vector<Update> updates;
    for (RandomEngine& engine : world.engines()) updates.push_back(staged(engine, version));
    const std::size_t fickle = world.dice()() % (4 * updates.size());
    if (fickle < updates.size()) {
        for (auto& one : open) REQUIRE_OK(one.wait_staged(patience()));
        updates[fickle].reject("changed its mind");
    }
    ShardWorld::commit(open);
    for (std::size_t i = 0; i < updates.size(); i++) {
        RandomEngine& engine = world.engines()[i];
        if (i == fickle) updates[i] = staged(engine, version);
        adopt(world, engine, updates[i]);
    }
}

// A rank of the trainer gives up a version that all engines have staged.
void fail(ShardWorld& world, std::int64_t version) {
    auto open = world.put(version);
    std::vector<Update> updates;
    for (RandomEngine& engine : world.engines()) updates.push_back(staged(engine, version));
    open[world.dice()() % open.size()].abort("the loss is not a number");
    for (auto& one : open) one.abort();
    for (std::size_t i = 0; i < updates.size(); i++) {
        RandomEngine& engine = world.engines()[i];
        CHECK(updates[i].adopt(patience()).error().code == Errc::aborted);
        REQUIRE((engine.held.bytes == engine.wanted));
        CHECK(engine.subscriber->state() == SubscriberState::ready);
        CHECK(engine.subscriber->live_version() == engine.live);
        engine.before.reset();
    }
}

void go_back(RandomEngine& engine) {
    const auto back = engine.subscriber->rollback();
    REQUIRE(back.has_value() == engine.before.has_value());
    if (back) {
        engine.wanted = std::move(*engine.before);
        engine.live = engine.live_before;
    } else {
        CHECK(back.error().code == Errc::invalid_argument);
    }
    engine.before.reset();
    REQUIRE((engine.held.bytes == engine.wanted));
    CHECK(engine.subscriber->live_version() == engine.live);
    CHECK(engine.subscriber->rollback().error().code == Errc::invalid_argument);
    // The version is not sent again.
    CHECK(engine.subscriber->next(Deadline::now()).error().code == Errc::timed_out);
}

// One that went back gets the version again: another attachment does not know of it.
void come_again(ShardWorld& world, RandomEngine& engine, std::int64_t version) {
    world.attach(engine);
    if (engine.live == version) return;
    auto update = staged(engine, version);
    adopt(world, engine, update);
}

}  // namespace

TEST_CASE("versions of every density reach engines of another cut bit by bit, and go back") {
    std::size_t ways[3] = {};
    for (const std::uint64_t ranks : {2U, 4U, 8U}) {
        for (const std::uint64_t engines : {2U, 4U, 8U}) {
            ShardWorld world(static_cast<unsigned>(100 * ranks + engines), ranks, engines);
            CAPTURE(ranks);
            CAPTURE(engines);
            CAPTURE(world.seed());
            attach_all(world);
            Dice& dice = world.dice();
            for (std::int64_t version = 1; version <= 100; version++) {
                CAPTURE(version);
                world.change(version % 7 == 0 ? 0 : static_cast<double>(dice() % 601) / 1000);
                if (dice() % 5 == 0) {
                    fail(world, version);
                    continue;
                }
                pass(world, version);
                for (RandomEngine& engine : world.engines()) {
                    ways[static_cast<std::size_t>(engine.subscriber->delta().way)]++;
                    if (dice() % 4 == 0) go_back(engine);
                    if (dice() % 20 == 0) come_again(world, engine, version);
                }
            }
        }
    }
    for (const std::size_t count : ways) CHECK(count > 100);
}

}  // namespace rollring::test
