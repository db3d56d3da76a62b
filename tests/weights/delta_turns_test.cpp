// Staging by difference on the trainer's own GPU, which turns from the one process to the other.

#include <thread>

#include "device_pair.hpp"

namespace rollring::test {
namespace {

// An engine beside the trainer.
struct OnOneGpu {
    explicit OnOneGpu(const PublisherOptions& publishing, SubscriberOptions receiving = {}) {
        gpu.reset();
        receiving.rank = 0;
        receiving.device = trainer_gpu;
        receiving.staging = Staging::delta;
        publisher.emplace(publisher_on(ring, trainer, publishing));
        subscriber.emplace(subscriber_on(ring, engine, receiving));
    }
    // The version is open, and the parts that have a slot are filled.
    Transaction begin(std::int64_t number, Deadline deadline = patience()) {
        trainer.fill(number);
        auto version = publisher->begin(number);
        REQUIRE_OK(version);
        const auto put = version->put_all(deadline);
        CHECK((put || put.error().code == Errc::timed_out));
        return std::move(*version);
    }
    FakeDevice& gpu = fake_device(trainer_gpu);
    TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    std::optional<Publisher> publisher;
    std::optional<Subscriber> subscriber;
};

}  // namespace

TEST_CASE("parts that are filled are compared before a GPU is given back to the trainer") {
    for (const Device at : {trainer_gpu, engine_gpu}) {
        CAPTURE(at.gpu);
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
        const TestRing ring;
        Tensors trainer = small_model();
        Tensors engine = small_model();
        auto publisher = publisher_on(ring, trainer, with_all_in_slots());
        auto subscriber =
            subscriber_on(ring, engine, {.rank = 0, .device = at, .staging = Staging::delta});
        trainer.fill(1);
        auto version = publisher.begin(1);
        REQUIRE_OK(version);
        REQUIRE_OK(version->put_all(patience()));
        REQUIRE_OK(version->publish());
        fake_device(at).compared_by_mark = -1;
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        // On a GPU of its own the engine compares while the trainer fills.
        const auto parts = static_cast<int>(publisher.parts());
        REQUIRE(parts > 2);
        const bool shared = at.gpu == trainer_gpu.gpu;
        CHECK(fake_device(at).compared_by_mark == (shared ? parts : 1));
        CHECK(fake_device(at).compare_calls == (shared ? 1 : parts));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(version->commit(patience()));
        REQUIRE_OK(update->adopt(patience()));
        CHECK(engine.holds(1));
    }
}

TEST_CASE("a turn has as many parts as there are slots") {
    PublisherOptions two_slots = on_gpu;
    two_slots.slots = 2;
    OnOneGpu both(two_slots);
    auto version = both.begin(1, soon());
    std::thread filling([&] {
        REQUIRE_OK(version.put_all(patience()));
        REQUIRE_OK(version.publish());
    });
    auto update = both.subscriber->next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    filling.join();
    const auto parts = static_cast<int>(both.publisher->parts());
    REQUIRE(parts > 2);
    CHECK(both.gpu.comparisons == parts);
    // The trainer may be late, so that a turn has fewer.
    CHECK(both.gpu.compare_calls >= (parts + 1) / 2);
    CHECK(both.gpu.compare_calls < parts);
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(version.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(both.engine.holds(1));
}

TEST_CASE("parts of a turn that do not all fit into the list are copied in place, or refused") {
    for (const std::uint64_t list_bytes : {std::uint64_t{64}, std::uint64_t{10'000}}) {
        for (const DeltaFallback fallback : {DeltaFallback::in_place, DeltaFallback::refuse}) {
            CAPTURE(list_bytes);
            CAPTURE(name(fallback));
            OnOneGpu both(on_gpu, {.delta_fallback = fallback, .delta_list_bytes = list_bytes});
            const auto take_one = [&](std::int64_t number) {
                Result<std::int64_t> taken{-1};
                std::thread taking([&] { taken = take(*both.subscriber); });
                auto version = send(*both.publisher, both.trainer, number);
                const auto committed = version.commit(patience());
                taking.join();
                CHECK(committed.has_value() == taken.has_value());
                return taken;
            };
            REQUIRE_OK(take_one(1));  // there is nothing to lose yet
            CHECK(both.engine.holds(1));
            const auto second = take_one(2);
            CHECK(second.has_value() == (fallback == DeltaFallback::in_place));
            CHECK(both.engine.holds(second ? 2 : 1));
            if (!second) CHECK(second.error().code == Errc::too_large);
            CHECK(both.subscriber->state() == SubscriberState::ready);
        }
    }
}

TEST_CASE("an engine that keeps parts while its device stops can go on, or give the version up") {
    OnOneGpu both(with_all_in_slots());
    auto version = both.begin(1);
    REQUIRE_OK(version.publish());
    auto update = both.subscriber->next(patience());
    REQUIRE_OK(update);
    both.gpu.stops_at = 0;
    const auto late = update->load(soon());
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);
    CHECK(both.gpu.comparisons == 0);

    SUBCASE("goes on") {
        both.gpu.go_on();
        REQUIRE_OK(update->load(patience()));
        CHECK(both.gpu.comparisons == static_cast<int>(both.publisher->parts()));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(version.commit(patience()));
        REQUIRE_OK(update->adopt(patience()));
        CHECK(both.engine.holds(1));
    }
    SUBCASE("gives up") {
        update->reject("changed its mind");
        CHECK(both.gpu.queued() == 1);  // the comparison still reads the slots
        const auto next = both.subscriber->next(soon());
        REQUIRE(!next);
        CHECK(next.error().message.contains("its device to finish reading"));
        version.abort();
        both.gpu.go_on();
        both.trainer.fill(2);
        std::thread taking([&] { CHECK(take(*both.subscriber).value_or(-1) == 2); });
        const auto committed = send(*both.publisher, both.trainer, 2).commit(patience());
        taking.join();
        REQUIRE_OK(committed);
        CHECK(both.engine.holds(2));
    }
}

}  // namespace rollring::test
