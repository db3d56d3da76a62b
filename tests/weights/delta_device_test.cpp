// Staging by difference on a device that stops getting anywhere, or fails.

#include <cmath>
#include <thread>

#include "device_pair.hpp"

namespace rollring::test {
namespace {

void pass(DevicePair& pair, std::int64_t version) {
    std::thread taking([&] { CHECK(take(*pair.subscriber).value_or(-1) == version); });
    const Result<CommitReport> committed =
        send(*pair.publisher, pair.trainer, version).commit(patience());
    taking.join();
    REQUIRE_OK(committed);
    CHECK(pair.engine.holds(version));
}

}  // namespace

TEST_CASE("an engine whose device stops while it compares keeps its slot, and can go on") {
    DevicePair pair(on_gpu, {.staging = Staging::delta});  // 2 slots, more parts
    FakeDevice& gpu = fake_device(engine_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    REQUIRE(!version->put_all(soon()));  // both slots
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    for (int i = 0; i < 2; i++) {
        const auto late = update->load(soon());
        REQUIRE(!late);
        CHECK(late.error().code == Errc::timed_out);
    }
    auto full = version->put_all(soon());
    REQUIRE(!full);
    CHECK(full.error().message.contains("'engine'"));

    SUBCASE("with the same version") {
        gpu.go_on();
        std::thread engine([&] {
            REQUIRE_OK(update->load(patience()));
            REQUIRE_OK(update->stage(patience()));
            REQUIRE_OK(update->adopt(patience()));
        });
        REQUIRE_OK(version->put_all(patience()));
        REQUIRE_OK(version->publish());
        REQUIRE_OK(version->commit(patience()));
        engine.join();
        CHECK(pair.engine.holds(1));
    }
    SUBCASE("with the next one, if it has given that one up") {
        update->reject("changed its mind");
        const auto next = pair.subscriber->next(soon());
        REQUIRE(!next);
        CHECK(next.error().message.contains("its device to finish reading"));
        full = version->put_all(soon());
        REQUIRE(!full);
        CHECK(full.error().code == Errc::timed_out);
        gpu.go_on();
        REQUIRE_OK(version->put_all(patience()));
        version->abort();
        {
            // Of one that is given up before it is compared, the device reads nothing.
            auto open = pair.publisher->begin(2);
            REQUIRE_OK(open);
            REQUIRE(!open->put_all(soon()));
            auto unread = pair.subscriber->next(patience());
            REQUIRE_OK(unread);
            gpu.stopped = true;
            unread->reject("changed its mind again");
            CHECK(gpu.queued() == 0);
            gpu.go_on();
        }
        pass(pair, 3);
    }
}

TEST_CASE("a comparison goes on in the stream of its first call, which is waited for") {
    DevicePair pair(on_gpu, {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    REQUIRE(!version->put_all(soon()));
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    int streams[2];
    for (int& stream : streams) {
        CHECK(update->load(soon(), Stream{&stream}).error().code == Errc::timed_out);
        CHECK(gpu.compares_on.load() == &streams[0]);
    }
    update->reject("changed its mind");
    CHECK(gpu.queued() == 1);
    CHECK(gpu.queued(Stream{&streams[0]}) == 1);
    gpu.go_on();
    version->abort();
    pass(pair, 2);
}

TEST_CASE("an engine keeps a slot that its device may still compare when it hears of an error") {
    DevicePair pair(on_gpu, {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    REQUIRE(!version->put_all(soon()));
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = gpu.loses = true;
    CHECK(update->load(patience()).error().code == Errc::device_error);
    gpu.loses = false;
    CHECK(gpu.queued() == 1);
    const auto full = version->put_all(soon());
    REQUIRE(!full);
    CHECK(full.error().code == Errc::timed_out);
    const auto next = pair.subscriber->next(soon());
    REQUIRE(!next);
    CHECK(next.error().message.contains("its device to finish reading"));
    gpu.go_on();
    REQUIRE_OK(version->put_all(patience()));
    version->abort();
    pass(pair, 2);
}

TEST_CASE("an engine cannot return a part that its device compares") {
    DevicePair pair(on_gpu, {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    REQUIRE(!version->put_all(soon()));
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    CHECK(update->load(soon()).error().code == Errc::timed_out);
    const auto returned = update->done_reading(0);
    REQUIRE(!returned);
    CHECK(returned.error().code == Errc::invalid_argument);
    CHECK(returned.error().message.contains("Staging::delta"));
    CHECK(gpu.queued() == 0);
    gpu.go_on();
}

TEST_CASE("an engine whose device fails within the exchange is poisoned until the next version") {
    DevicePair pair(with_all_in_slots(), {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    std::thread first([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 1).commit(patience()));
    first.join();
    std::thread second([&] {
        auto update = pair.subscriber->next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(update->wait_committed(patience()));
        gpu.refuses = true;
        CHECK(update->adopt(patience()).error().code == Errc::device_error);
        gpu.refuses = false;
    });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 2).commit(patience()));
    second.join();
    CHECK(pair.subscriber->state() == SubscriberState::poisoned);
    CHECK(pair.subscriber->rollback().error().code == Errc::invalid_argument);
    std::thread third([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 3).commit(patience()));
    third.join();
    CHECK(pair.engine.holds(3));
    CHECK(pair.subscriber->state() == SubscriberState::ready);
    CHECK(pair.subscriber->rollback().error().code == Errc::invalid_argument);
    CHECK(pair.engine.holds(3));
}

TEST_CASE("an engine whose device fails on the way back shows why it is poisoned") {
    DevicePair pair(with_all_in_slots(), {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    pass(pair, 1);
    pass(pair, 2);
    gpu.refuses = true;
    CHECK(pair.subscriber->rollback().error().code == Errc::device_error);
    gpu.refuses = false;
    CHECK(pair.subscriber->state() == SubscriberState::poisoned);
    const auto stat = stat_weights(pair.ring.name());
    REQUIRE_OK(stat);
    CHECK(stat->front().subscribers[0].problem.contains("the fake device failed"));
    CHECK(stat->front().subscribers[0].staged_version == -1);
    pass(pair, 3);
    CHECK(pair.subscriber->state() == SubscriberState::ready);
}

TEST_CASE("an exchange whose end its caller does not know is over before the next version") {
    DevicePair pair(with_all_in_slots(), {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    pass(pair, 1);
    std::thread second([&] {
        auto update = pair.subscriber->next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        gpu.loses = true;
        CHECK(update->adopt(patience()).error().code == Errc::device_error);
    });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 2).commit(patience()));
    second.join();
    CHECK(pair.subscriber->state() == SubscriberState::poisoned);
    gpu.loses = false;
    gpu.stopped = true;
    auto version = send(*pair.publisher, pair.trainer, 3);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    CHECK(update->load(soon()).error().code == Errc::timed_out);
    CHECK(!gpu.raced);
    gpu.go_on();
    std::thread third([&] {
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(update->adopt(patience()));
    });
    REQUIRE_OK(version.commit(patience()));
    third.join();
    CHECK(!gpu.raced);
    CHECK(pair.engine.holds(3));
}

TEST_CASE("an engine that waits for a comparison hears of the rest of the channel") {
    DevicePair pair(on_gpu, {.staging = Staging::delta});
    FakeDevice& gpu = fake_device(engine_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    REQUIRE(!version->put_all(soon()));
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.compares_on = nullptr;
    gpu.stopped = true;
    int stream = 0;
    // Does something once the engine compares; returns the error that ends its load.
    const auto load_while = [&](const auto& happens) {
        const Deadline deadline = patience();
        std::thread other([&] {
            while (gpu.compares_on == nullptr) std::this_thread::yield();
            happens();
        });
        const auto loaded = update->load(deadline, Stream{&stream});
        other.join();
        REQUIRE(!loaded);
        CHECK(!deadline.passed());
        return loaded.error().code;
    };
    SUBCASE("interrupt") {
        CHECK(load_while([&] { pair.subscriber->interrupt(); }) == Errc::timed_out);
        CHECK(load_while([&] { version->abort(); }) == Errc::aborted);
    }
    SUBCASE("expelled") {
        CHECK(load_while([&] { REQUIRE_OK(pair.publisher->expel("engine")); }) == Errc::expelled);
    }
    SUBCASE("the publisher closes") {
        const auto close = [&] {
            version = refused(Errc::closed, "it went with its publisher");
            pair.publisher.reset();
        };
        const Errc why = load_while(close);
        CHECK((why == Errc::peer_gone || why == Errc::aborted));
    }
    CHECK(pair.subscriber->state() == SubscriberState::ready);
    gpu.go_on();
}

TEST_CASE("a GPU without memory for a list is not taken for a version that changes too much") {
    for (const DeltaFallback fallback :
         {DeltaFallback::refuse, DeltaFallback::beside, DeltaFallback::in_place}) {
        CAPTURE(name(fallback));
        DevicePair pair(with_all_in_slots(),
                        {.staging = Staging::delta, .delta_fallback = fallback});
        FakeDevice& gpu = fake_device(engine_gpu);
        pass(pair, 1);
        gpu.is_full = true;
        auto version = send(*pair.publisher, pair.trainer, 2);
        std::thread taking([&] {
            const auto taken = take(*pair.subscriber);
            CHECK(taken.has_value() == (fallback == DeltaFallback::in_place));
            if (taken) return;
            CHECK(taken.error().code == Errc::out_of_device_memory);
            CHECK(taken.error().message.contains("GPU 1 has no memory for the list"));
            CHECK(!taken.error().message.contains("delta_list_bytes"));
        });
        const auto committed = version.commit(patience());
        taking.join();
        CHECK(committed.has_value() == (fallback == DeltaFallback::in_place));
        CHECK(pair.engine.holds(committed ? 2 : 1));
        CHECK(pair.subscriber->state() == SubscriberState::ready);
    }
}

TEST_CASE("the memory of a list is kept for versions that change about as much") {
    DevicePair pair(with_all_in_slots(), {.staging = Staging::delta});
    auto& trained = pair.trainer.memory()[0];  // of 3300 elements of 4 bytes
    std::int64_t version = 0;
    // Passes a version with that many changes; returns the memory that was kept for it.
    const auto kept_for = [&](std::size_t changes) {
        for (std::size_t i = 0; i < changes; i++) trained[12 * i] ^= std::byte{1};
        std::thread taking([&] { REQUIRE_OK(take(*pair.subscriber)); });
        auto open = pair.publisher->begin(++version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        REQUIRE_OK(open->commit(patience()));
        taking.join();
        CHECK(pair.subscriber->delta().changed == changes);
        return fake_device(engine_gpu).kept_bytes.load();
    };
    CHECK(kept_for(1000) == 0);
    const std::uint64_t kept = kept_for(800);
    CHECK(kept >= 1000 * 6);
    CHECK(kept_for(900) == kept);
    {
        // Neither a load that is called again before the first part is there, nor a version that is
        // given up, says how large the next list is.
        FakeDevice& trainer = fake_device(trainer_gpu);
        trainer.stopped = true;
        auto open = pair.publisher->begin(++version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        auto update = pair.subscriber->next(patience());
        REQUIRE_OK(update);
        for (int i = 0; i < 2; i++) {
            CHECK(update->load(soon()).error().code == Errc::timed_out);
            CHECK(fake_device(engine_gpu).kept_bytes.load() == kept);
        }
        trainer.go_on();
        REQUIRE_OK(update->load(patience()));
        update->reject("changed its mind");
    }
    CHECK(kept_for(900) == kept);
    CHECK(kept_for(100) == kept);
    CHECK(kept_for(0) < kept / 3);
    CHECK(kept_for(1000) == 0);
}

TEST_CASE("an engine's share of its device's time is that of its comparisons") {
    {
        const DevicePair throttled(on_gpu, {.staging = Staging::delta, .staging_share = 0.25});
        CHECK(fake_device(engine_gpu).share == 0.25);
    }
    const DevicePair whole(on_gpu, {.staging = Staging::delta});
    CHECK(fake_device(engine_gpu).share == 1);
    const TestRing ring;
    for (const double share : {0.0, -0.5, 0.5, 1.001, std::nan("")}) {
        SubscriberOptions options{.device = engine_gpu, .staging_share = share};
        auto refused = Subscriber::attach(ring.name(), {}, options, soon());
        REQUIRE(!refused);
        CHECK(refused.error().code == Errc::invalid_argument);
        CHECK(refused.error().message.contains("staging_share"));
        options.layout.resize(8);
        refused = Subscriber::attach(ring.name(), {}, options, soon());
        REQUIRE(!refused);
        CHECK(refused.error().message.contains("staging_share"));
    }
}

}  // namespace rollring::test
