#pragma once
// One rank of a trainer with shards, and one engine, on fake GPUs.

#include <optional>
#include <utility>

#include "channel.hpp"
#include "fake_device.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {

struct ShardPairOptions {
    SubscriberOptions receiving = {};
    Device engine_at = engine_gpu;
    bool checksums = false;
    bool engine_is_full = false;  // its device has no memory left
};

struct ShardPair {
    explicit ShardPair(ShardPairOptions options = {}) {
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
        auto made = Publisher::create(
            ring.name(), trainer.list(),
            {.device = trainer_gpu, .checksums = options.checksums, .layout = trainer.layout()});
        REQUIRE_OK(made);
        publisher.emplace(std::move(*made));
        fake_device(options.engine_at).is_full = options.engine_is_full;
        options.receiving.device = options.engine_at;
        options.receiving.layout = engine.layout();
        auto attached =
            Subscriber::attach(ring.name(), engine.list(), options.receiving, patience());
        REQUIRE_OK(attached);
        subscriber.emplace(std::move(*attached));
    }
    [[nodiscard]] Transaction put(std::int64_t version) {
        trainer.fill(version);
        auto open = publisher->begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        return std::move(*open);
    }
    [[nodiscard]] Update next() {
        auto update = subscriber->next(patience());
        REQUIRE_OK(update);
        return std::move(*update);
    }
    [[nodiscard]] Update stage() {
        Update update = next();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        return update;
    }
    void pass(std::int64_t version) {
        Transaction open = put(version);
        Update update = stage();
        REQUIRE_OK(open.commit(patience()));
        REQUIRE_OK(update.adopt(patience()));
        CHECK(engine.holds(version));
    }
    TestRing ring;
    TrainerShard trainer{0, 1};
    EngineShard engine{0, 1};
    std::optional<Publisher> publisher;
    std::optional<Subscriber> subscriber;
};

}  // namespace rollring::test
