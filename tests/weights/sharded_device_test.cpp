// An engine of a sharded trainer whose device is slow.

#include "shard_pair.hpp"

namespace rollring::test {

TEST_CASE("a deadline within the copies of a committed version loses nothing") {
    ShardPair pair;
    FakeDevice& gpu = fake_device(engine_gpu);
    for (std::int64_t version = 1; version <= 2; version++) {
        Transaction open = pair.put(version);
        Update update = pair.stage();
        REQUIRE_OK(open.commit(patience()));
        gpu.stopped = true;
        for (int tries = 0; tries < 3; tries++) {
            const auto late = update.adopt(Deadline::now());
            REQUIRE(!late);
            CHECK(late.error().code == Errc::timed_out);
        }
        gpu.go_on();
        REQUIRE_OK(update.adopt(patience()));
        CHECK(pair.engine.holds(version));
        CHECK(pair.subscriber->state() == SubscriberState::ready);
    }
}

TEST_CASE("an engine that leaves a version amid its copies is poisoned until the next one") {
    ShardPair pair;
    FakeDevice& gpu = fake_device(engine_gpu);
    {
        Transaction open = pair.put(1);
        Update update = pair.stage();
        REQUIRE_OK(open.commit(patience()));
        gpu.stopped = true;
        CHECK(update.adopt(Deadline::now()).error().code == Errc::timed_out);
    }
    CHECK(pair.subscriber->state() == SubscriberState::poisoned);
    gpu.go_on();
    Transaction open = pair.put(2);
    Update update = pair.stage();
    REQUIRE_OK(open.commit(patience()));
    REQUIRE_OK(update.adopt(patience()));
    CHECK(pair.engine.holds(2));
}

TEST_CASE("memory that goes before the copies of a committed version poisons nothing") {
    ShardPair pair;
    FakeDevice& gpu = fake_device(engine_gpu);
    Transaction open = pair.put(1);
    {
        Update update = pair.stage();
        REQUIRE_OK(open.commit(patience()));
        gpu.released = pair.engine.list().front().data;
        CHECK(update.adopt(patience()).error().code == Errc::already_released);
    }
    CHECK(pair.subscriber->state() == SubscriberState::ready);
    gpu.released = nullptr;
    Update again = pair.stage();
    CHECK(again.version() == 1);
    REQUIRE_OK(again.adopt(patience()));
    CHECK(pair.engine.holds(1));
}

TEST_CASE("a checksum that takes long is asked for once") {
    ShardPair pair({.checksums = true});
    FakeDevice& gpu = fake_device(engine_gpu);
    Transaction open = pair.put(1);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    gpu.verifications = 0;
    CHECK(update->load(Deadline::after_ms(200)).error().code == Errc::timed_out);
    CHECK(gpu.verifications == 1);
    gpu.go_on();
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(open.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(pair.engine.holds(1));
}

}  // namespace rollring::test
