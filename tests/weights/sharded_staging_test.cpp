// An engine whose trainer is on another device: its elements are beside its tensors before the
// version is decided.

#include <cstring>
#include <thread>

#include "channel.hpp"
#include "fake_device.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {
namespace {

// One rank on the trainer's fake GPU.
struct Staged {
    explicit Staged(SubscriberOptions options = {}, Device at = engine_gpu) : gpu(fake_device(at)) {
        auto made = Publisher::create(ring.name(), trainer.list(),
                                      {.device = trainer_gpu, .layout = trainer.layout()});
        REQUIRE_OK(made);
        publisher.emplace(std::move(*made));
        options.device = at;
        options.layout = engine.layout();
        auto attached = Subscriber::attach(ring.name(), engine.list(), options, patience());
        REQUIRE_OK(attached);
        subscriber.emplace(std::move(*attached));
    }
    ~Staged() { reset(); }
    Staged(const Staged&) = delete;
    Staged& operator=(const Staged&) = delete;

    static void reset() {
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
    }
    Transaction put(std::int64_t version) {
        trainer.fill(version);
        auto open = publisher->begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        return std::move(*open);
    }
    Update next() {
        auto update = subscriber->next(patience());
        REQUIRE_OK(update);
        return std::move(*update);
    }
    void pass(std::int64_t version) {
        Transaction open = put(version);
        Update update = next();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        REQUIRE_OK(open.commit(patience()));
        REQUIRE_OK(update.adopt(patience()));
        CHECK(engine.holds(version));
    }
    FakeDevice& gpu;
    TestRing ring;
    TrainerShard trainer{0, 1};
    EngineShard engine{0, 1};
    std::optional<Publisher> publisher;
    std::optional<Subscriber> subscriber;
};

}  // namespace

TEST_CASE("parts of another device are copied before the decision, and adopt reads no slot") {
    Staged::reset();
    for (const bool staged : {true, false}) {
        CAPTURE(staged);
        Staged both({.stage_remote = staged});
        CHECK((both.subscriber->staging_bytes() > 0) == staged);
        for (std::int64_t version = 1; version <= 3; version++) {
            Transaction open = both.put(version);
            Update update = both.next();
            both.gpu.unpacked = nullptr;
            REQUIRE_OK(update.load(patience()));
            const void* const slot = both.gpu.unpacked;
            CHECK((slot != nullptr) == staged);
            CHECK((version == 1 || both.engine.holds(version - 1)));
            REQUIRE_OK(update.stage(patience()));
            REQUIRE_OK(open.commit(patience()));
            REQUIRE_OK(update.adopt(patience()));
            CHECK(both.gpu.unpacked != slot);
            CHECK(both.engine.holds(version));
        }
    }
}

TEST_CASE("an engine on the trainer's device, or by difference, has no memory beside") {
    Staged::reset();
    {
        Staged same({}, trainer_gpu);
        CHECK(same.subscriber->staging_bytes() == 0);
        same.pass(1);
    }
    Staged listing({.staging = rollring::Staging::delta});
    CHECK(listing.subscriber->staging_bytes() == 0);
    listing.pass(1);
}

TEST_CASE("a device without memory for it copies from the slots") {
    Staged::reset();
    fake_device(engine_gpu).is_full = true;
    Staged both;
    CHECK(both.subscriber->staging_bytes() == 0);
    both.pass(1);
    both.pass(2);
}

TEST_CASE("an engine whose device is late with its copies keeps the slots, and can go on") {
    Staged::reset();
    Staged both;
    both.pass(1);
    Transaction open = both.put(2);
    Update update = both.next();
    both.gpu.stopped = true;
    for (int i = 0; i < 2; i++) {
        CHECK(update.load(soon()).error().code == Errc::timed_out);
        CHECK(update.stage(soon()).error().code == Errc::invalid_argument);
    }
    SUBCASE("with the same version") {
        both.gpu.go_on();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        REQUIRE_OK(open.commit(patience()));
        REQUIRE_OK(update.adopt(patience()));
        CHECK(both.engine.holds(2));
    }
    SUBCASE("with the next one, if it gives that one up") {
        update.reject("changed its mind");
        CHECK(both.gpu.queued() == 1);  // it may still read the slots
        open.abort("the engine has rejected it");
        const auto late = both.subscriber->next(soon());
        REQUIRE(!late);
        CHECK(late.error().message.contains("its device to finish reading"));
        both.gpu.go_on();
        both.pass(3);
    }
    CHECK(both.subscriber->state() == SubscriberState::ready);
}

TEST_CASE("an update that is dropped after its vote is staged again") {
    Staged::reset();
    Staged both;
    both.pass(1);
    Transaction open = both.put(2);
    {
        Update update = both.next();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        REQUIRE_OK(open.commit(patience()));
    }
    Update again = both.next();
    CHECK(again.version() == 2);
    REQUIRE_OK(again.load(patience()));
    REQUIRE_OK(again.stage(patience()));
    REQUIRE_OK(again.adopt(patience()));
    CHECK(both.engine.holds(2));
    both.pass(3);
}

}  // namespace rollring::test
