// A rank of a sharded trainer that offers the committed version again, and gives that up.

#include <thread>
#include <vector>

#include "sharded_channel.hpp"

namespace rollring::test {
namespace {

Transaction offer_again(TrainerRank& rank, std::int64_t version) {
    rank.shard.fill(version);
    REQUIRE_OK(rank.publisher.resume(version));
    auto again = rank.publisher.begin_again();
    REQUIRE_OK(again);
    REQUIRE_OK(again->put_all(patience()));
    REQUIRE_OK(again->publish());
    return std::move(*again);
}

}  // namespace

TEST_CASE("a version that a rank gave up when it offered it again is not taken from its slots") {
    for (const Staging staging : {Staging::copy, Staging::delta}) {
        for (const bool is_staged : {true, false}) {
            CAPTURE(name(staging));
            CAPTURE(is_staged);
            const TestRing ring;
            Trainer trainer(ring, 2);
            for (const std::int64_t version : {1, 2}) require_all(trainer.publish(version));
            trainer.start(1);
            const auto engine = engine_on(
                ring, 0, 1, {.staging = staging, .delta_fallback = DeltaFallback::beside});
            TrainerRank& rank = trainer.rank(1);
            {
                auto again = offer_again(rank, 2);
                auto update = engine->subscriber.next(patience());
                REQUIRE_OK(update);
                CHECK(update->version() == 2);
                REQUIRE_OK(update->load(patience()));
                if (is_staged) REQUIRE_OK(update->stage(patience()));
                again.abort("out of memory");
                // Its slots have other values by now.
                for (const std::int64_t version : {3, 4}) {
                    rank.shard.fill(version);
                    auto open = rank.publisher.begin(version);
                    REQUIRE_OK(open);
                    REQUIRE_OK(open->put_all(patience()));
                    open->abort();
                }
                if (!is_staged) REQUIRE_OK(update->stage(patience()));
                const auto adopted = update->adopt(patience());
                REQUIRE(!adopted);
                CHECK(adopted.error().code == Errc::aborted);
            }
            CHECK(engine->shard.holds(-1));
            CHECK(engine->subscriber.state() == SubscriberState::ready);
            // The other rank has the version still, and no engine has rejected it.
            CHECK(rank.publisher.behind() == 1);
            auto again = offer_again(rank, 2);
            Update update = staged_by(*engine);
            CHECK(update.version() == 2);
            REQUIRE_OK(again.commit(patience()));
            REQUIRE_OK(update.adopt(patience()));
            CHECK(engine->shard.holds(2));
        }
    }
}

}  // namespace rollring::test
