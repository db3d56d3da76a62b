// An engine of a sharded trainer that stages by difference, on a device that stops, or fails.

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "channel.hpp"
#include "fake_device.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t ranks = 3;

// Three ranks and one engine, on two fake GPUs.
struct Shards {
    explicit Shards(SubscriberOptions options = {}) {
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
        for (std::uint32_t rank = 0; rank < ranks; rank++) {
            shards.push_back(std::make_unique<TrainerShard>(rank, ranks));
            auto made = Publisher::create(ring.name(), shards.back()->list(),
                                          {.rank = rank,
                                           .ranks = ranks,
                                           .device = trainer_gpu,
                                           .layout = shards.back()->layout()});
            REQUIRE_OK(made);
            publishers.push_back(std::make_unique<Publisher>(std::move(*made)));
        }
        options.device = engine_gpu;
        options.staging = rollring::Staging::delta;
        options.layout = engine.layout();
        auto attached = Subscriber::attach(ring.name(), engine.list(), options, patience());
        REQUIRE_OK(attached);
        subscriber.emplace(std::move(*attached));
    }
    ~Shards() { fake_device(engine_gpu).reset(); }
    Shards(const Shards&) = delete;
    Shards& operator=(const Shards&) = delete;

    std::vector<Transaction> put(std::int64_t version) {
        std::vector<Transaction> open;
        for (std::uint32_t rank = 0; rank < ranks; rank++) {
            shards[rank]->fill(version);
            auto begun = publishers[rank]->begin(version);
            REQUIRE_OK(begun);
            REQUIRE_OK(begun->put_all(patience()));
            REQUIRE_OK(begun->publish());
            open.push_back(std::move(*begun));
        }
        return open;
    }
    static void commit(std::vector<Transaction>& open) {
        std::vector<std::thread> threads;
        threads.reserve(open.size());
        for (auto& one : open) threads.emplace_back([&] { CHECK(one.commit(patience())); });
        for (auto& thread : threads) thread.join();
    }
    Update next() {
        auto update = subscriber->next(patience());
        REQUIRE_OK(update);
        return std::move(*update);
    }
    // Of a version that all ranks have put: up to the decision.
    Update stage(std::vector<Transaction>& open) {
        Update update = next();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        commit(open);
        return update;
    }
    void pass(std::int64_t version) {
        auto open = put(version);
        Update update = stage(open);
        CHECK(update.version() == version);
        REQUIRE_OK(update.adopt(patience()));
        CHECK(engine.holds(version));
        CHECK(subscriber->state() == SubscriberState::ready);
    }
    void fail(std::vector<Transaction>& open) {
        for (auto& one : open) one.abort("the loss is not a number");
    }

    TestRing ring;
    std::vector<std::unique_ptr<TrainerShard>> shards;
    std::vector<std::unique_ptr<Publisher>> publishers;
    EngineShard engine{0, 1};
    std::optional<Subscriber> subscriber;
};

}  // namespace

TEST_CASE("a comparison of shards that is late goes on in the stream of its first call") {
    Shards shards;
    FakeDevice& gpu = fake_device(engine_gpu);
    shards.pass(1);
    auto open = shards.put(2);
    Update update = shards.next();
    gpu.stopped = true;
    int streams[2];
    for (int& stream : streams) {
        CHECK(update.load(soon(), Stream{&stream}).error().code == Errc::timed_out);
        CHECK(gpu.compares_on.load() == &streams[0]);
    }
    CHECK(update.stage(soon()).error().code == Errc::invalid_argument);
    CHECK(shards.engine.holds(1));
    SUBCASE("with the same version") {
        gpu.go_on();
        REQUIRE_OK(update.load(patience(), Stream{&streams[1]}));
        REQUIRE_OK(update.load(patience()));  // there is nothing left to compare
        REQUIRE_OK(update.stage(patience()));
        CHECK(shards.engine.holds(1));
        Shards::commit(open);
        REQUIRE_OK(update.adopt(Deadline::now()));
        CHECK(shards.engine.holds(2));
        REQUIRE_OK(shards.subscriber->rollback());
        CHECK(shards.engine.holds(1));
    }
    SUBCASE("and is waited for before the next version, if that one is given up") {
        update.reject("changed its mind");
        CHECK(gpu.queued() == 1);
        CHECK(gpu.queued(Stream{&streams[0]}) == 1);
        shards.fail(open);
        open = shards.put(3);
        const auto next = shards.subscriber->next(soon());
        REQUIRE(!next);
        CHECK(next.error().message.contains("its device to finish reading"));
        gpu.go_on();
        auto third = shards.stage(open);
        CHECK(third.version() == 3);
        REQUIRE_OK(third.adopt(patience()));
        CHECK(shards.engine.holds(3));
    }
}

TEST_CASE("an engine that compares shards hears of the rest of the channel") {
    Shards shards;
    FakeDevice& gpu = fake_device(engine_gpu);
    shards.pass(1);
    auto open = shards.put(2);
    Update update = shards.next();
    gpu.compares_on = nullptr;
    gpu.stopped = true;
    int stream = 0;
    const auto load_while = [&](const std::function<void()>& happens) {
        const Deadline deadline = patience();
        std::thread other([&] {
            while (gpu.compares_on == nullptr) std::this_thread::yield();
            happens();
        });
        const auto loaded = update.load(deadline, Stream{&stream});
        other.join();
        REQUIRE(!loaded);
        CHECK(!deadline.passed());
        return loaded.error().code;
    };
    SUBCASE("interrupt, and a rank that aborts") {
        CHECK(load_while([&] { shards.subscriber->interrupt(); }) == Errc::timed_out);
        CHECK(load_while([&] { open.back().abort("not this one"); }) == Errc::aborted);
    }
    SUBCASE("expelled") {
        CHECK(load_while([&] { REQUIRE_OK(shards.publishers[1]->expel("engine")); }) ==
              Errc::expelled);
    }
    SUBCASE("a rank closes") {
        const auto close = [&] {
            open.pop_back();
            shards.publishers.pop_back();
        };
        const Errc why = load_while(close);
        CHECK((why == Errc::peer_gone || why == Errc::aborted));
    }
    CHECK(shards.subscriber->state() == SubscriberState::ready);
    CHECK(shards.engine.holds(1));
    gpu.go_on();
}

TEST_CASE("a committed version is compared although the ranks that have it in slots are gone") {
    Shards shards({.name = "first"});
    FakeDevice& gpu = fake_device(engine_gpu);
    shards.pass(1);
    EngineShard late(0, 1);
    auto second = Subscriber::attach(shards.ring.name(), late.list(),
                                     {.name = "second",
                                      .device = engine_gpu,
                                      .staging = rollring::Staging::delta,
                                      .layout = late.layout()},
                                     patience());
    REQUIRE_OK(second);
    auto update = second->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    CHECK(update->load(Deadline::now()).error().code == Errc::timed_out);
    shards.publishers.clear();
    CHECK(update->load(Deadline::after_ms(120)).error().code == Errc::timed_out);
    gpu.go_on();
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(late.holds(1));
}

TEST_CASE("a device that fails within the exchange of shards poisons until the next version") {
    Shards shards;
    FakeDevice& gpu = fake_device(engine_gpu);
    shards.pass(1);
    SUBCASE("at once") {
        auto open = shards.put(2);
        Update update = shards.stage(open);
        gpu.refuses = true;
        CHECK(update.adopt(patience()).error().code == Errc::device_error);
        gpu.refuses = false;
    }
    SUBCASE("without its caller's knowledge of its end") {
        auto open = shards.put(2);
        Update update = shards.stage(open);
        gpu.loses = true;
        CHECK(update.adopt(patience()).error().code == Errc::device_error);
        gpu.loses = false;
        gpu.stopped = true;
        auto third = shards.put(3);
        auto late = shards.next();
        CHECK(late.load(soon()).error().code == Errc::timed_out);
        CHECK(!gpu.raced);
        gpu.go_on();
        shards.fail(third);
        CHECK(late.load(patience()).error().code == Errc::aborted);
    }
    SUBCASE("on the way back") {
        shards.pass(2);
        gpu.refuses = true;
        CHECK(shards.subscriber->rollback().error().code == Errc::device_error);
        gpu.refuses = false;
    }
    CHECK(!gpu.raced);
    CHECK(shards.subscriber->state() == SubscriberState::poisoned);
    CHECK(shards.subscriber->rollback().error().code == Errc::invalid_argument);
    const auto stat = stat_weights(shards.ring.name());
    REQUIRE_OK(stat);
    REQUIRE(stat->size() == ranks);
    for (const WeightsStat& rank : *stat) {
        CHECK(rank.subscribers.at(0).state == SubscriberState::poisoned);
        CHECK(rank.subscribers.at(0).staged_version == -1);
    }
    auto open = shards.put(4);
    Update update = shards.next();
    while (update.version() != 4) {
        // Some rank may offer the committed version again before.
        CHECK(update.version() == 2);
        update.reject("a newer one is there");
        update = shards.next();
    }
    REQUIRE_OK(update.load(patience()));
    REQUIRE_OK(update.stage(patience()));
    Shards::commit(open);
    REQUIRE_OK(update.adopt(patience()));
    CHECK(shards.engine.holds(4));
    CHECK(shards.subscriber->state() == SubscriberState::ready);
    CHECK(shards.subscriber->rollback().error().code == Errc::invalid_argument);  // to a mixture
    CHECK(shards.engine.holds(4));
}

TEST_CASE("memory that goes before the exchange of shards poisons nothing") {
    Shards shards;
    FakeDevice& gpu = fake_device(engine_gpu);
    shards.pass(1);
    auto open = shards.put(2);
    {
        Update update = shards.stage(open);
        gpu.released = shards.engine.list().back().data;
        CHECK(update.adopt(patience()).error().code == Errc::already_released);
        CHECK(shards.subscriber->rollback().error().code == Errc::invalid_argument);
    }
    CHECK(shards.subscriber->state() == SubscriberState::ready);
    gpu.released = nullptr;
    CHECK(shards.engine.holds(1));
    Update again = shards.next();
    CHECK(again.version() == 2);
    REQUIRE_OK(again.load(patience()));
    REQUIRE_OK(again.stage(patience()));
    REQUIRE_OK(again.adopt(patience()));
    CHECK(shards.engine.holds(2));
    gpu.released = shards.engine.list().back().data;
    CHECK(shards.subscriber->rollback().error().code == Errc::already_released);
    gpu.released = nullptr;
    REQUIRE_OK(shards.subscriber->rollback());
    CHECK(shards.engine.holds(1));
}

TEST_CASE("a device without memory for the list of shards") {
    for (const DeltaFallback fallback : {DeltaFallback::refuse, DeltaFallback::in_place}) {
        CAPTURE(name(fallback));
        Shards shards({.delta_fallback = fallback});
        FakeDevice& gpu = fake_device(engine_gpu);
        shards.pass(1);
        gpu.is_full = true;
        if (fallback == DeltaFallback::in_place) {
            shards.pass(2);
            CHECK(shards.subscriber->delta().way == DeltaWay::in_place);
            CHECK(shards.subscriber->rollback().error().code == Errc::invalid_argument);
            continue;
        }
        auto open = shards.put(2);
        Update update = shards.next();
        const auto loaded = update.load(patience());
        REQUIRE(!loaded);
        CHECK(loaded.error().code == Errc::out_of_device_memory);
        for (auto& one : open) {
            const auto committed = one.commit(patience());
            REQUIRE(!committed);
            CHECK((committed.error().code == Errc::rejected ||
                   committed.error().code == Errc::aborted));
            one.abort();
        }
        CHECK(shards.engine.holds(1));
        CHECK(shards.subscriber->state() == SubscriberState::ready);
    }
}

TEST_CASE("an engine that leaves copies of shards behind takes the next version after them") {
    Shards shards({.delta_fallback = DeltaFallback::in_place, .delta_list_bytes = 8});
    FakeDevice& gpu = fake_device(engine_gpu);
    {
        auto open = shards.put(1);
        Update update = shards.stage(open);
        CHECK(shards.engine.holds(-1));  // copied behind the decision alone
        gpu.stopped = true;
        for (int tries = 0; tries < 2; tries++) {
            CHECK(update.adopt(Deadline::now()).error().code == Errc::timed_out);
        }
    }
    CHECK(shards.subscriber->state() == SubscriberState::poisoned);
    CHECK(shards.subscriber->next(Deadline::now()).error().code == Errc::timed_out);
    auto open = shards.put(2);
    CHECK(shards.subscriber->next(soon()).error().code == Errc::timed_out);
    gpu.go_on();
    Update update = shards.stage(open);
    CHECK(update.version() == 2);
    REQUIRE_OK(update.adopt(patience()));
    CHECK(shards.engine.holds(2));
    CHECK(shards.subscriber->delta().way == DeltaWay::in_place);
}

}  // namespace rollring::test
