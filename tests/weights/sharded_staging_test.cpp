// An engine whose trainer is on another device: its elements are beside its tensors before the
// version is decided.

#include "shard_pair.hpp"

namespace rollring::test {

TEST_CASE("parts of another device are copied before the decision, and adopt reads no slot") {
    for (const bool staged : {true, false}) {
        CAPTURE(staged);
        ShardPair both({.receiving = {.stage_remote = staged}});
        FakeDevice& gpu = fake_device(engine_gpu);
        CHECK((both.subscriber->staging_bytes() > 0) == staged);
        CHECK(both.subscriber->why_not_staged().empty());
        for (std::int64_t version = 1; version <= 3; version++) {
            Transaction open = both.put(version);
            Update update = both.next();
            gpu.unpacked = nullptr;
            REQUIRE_OK(update.load(patience()));
            const void* const slot = gpu.unpacked;
            CHECK((slot != nullptr) == staged);
            CHECK((version == 1 || both.engine.holds(version - 1)));
            REQUIRE_OK(update.stage(patience()));
            REQUIRE_OK(open.commit(patience()));
            REQUIRE_OK(update.adopt(patience()));
            CHECK(gpu.unpacked != slot);
            CHECK(both.engine.holds(version));
        }
    }
}

TEST_CASE("an engine on the trainer's device, or by difference, has no memory beside") {
    {
        ShardPair same({.engine_at = trainer_gpu});
        CHECK(same.subscriber->staging_bytes() == 0);
        CHECK(same.subscriber->why_not_staged().empty());
        same.pass(1);
    }
    ShardPair listing({.receiving = {.staging = rollring::Staging::delta}});
    CHECK(listing.subscriber->staging_bytes() == 0);
    listing.pass(1);
}

TEST_CASE("a device without memory for it copies from the slots") {
    ShardPair both({.engine_is_full = true});
    CHECK(both.subscriber->staging_bytes() == 0);
    CHECK(both.subscriber->why_not_staged() == "the fake device is full");
    both.pass(1);
    both.pass(2);
}

TEST_CASE("an engine whose device is late with its copies keeps the slots, and can go on") {
    ShardPair both;
    FakeDevice& gpu = fake_device(engine_gpu);
    both.pass(1);
    Transaction open = both.put(2);
    Update update = both.next();
    gpu.stopped = true;
    for (int i = 0; i < 2; i++) {
        CHECK(update.load(soon()).error().code == Errc::timed_out);
        CHECK(update.stage(soon()).error().code == Errc::invalid_argument);
    }
    SUBCASE("with the same version") {
        gpu.go_on();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        REQUIRE_OK(open.commit(patience()));
        REQUIRE_OK(update.adopt(patience()));
        CHECK(both.engine.holds(2));
    }
    SUBCASE("with the next one, if it gives that one up") {
        update.reject("changed its mind");
        CHECK(gpu.queued() == 1);  // it may still read the slots
        open.abort("the engine has rejected it");
        const auto late = both.subscriber->next(soon());
        REQUIRE(!late);
        CHECK(late.error().message.contains("its device to finish reading"));
        gpu.go_on();
        both.pass(3);
    }
    CHECK(both.subscriber->state() == SubscriberState::ready);
}

TEST_CASE("an update that is dropped after its vote is staged again") {
    ShardPair both;
    both.pass(1);
    Transaction open = both.put(2);
    {
        const Update update = both.stage();
        REQUIRE_OK(open.commit(patience()));
    }
    Update again = both.stage();
    CHECK(again.version() == 2);
    REQUIRE_OK(again.adopt(patience()));
    CHECK(both.engine.holds(2));
    both.pass(3);
}

}  // namespace rollring::test
