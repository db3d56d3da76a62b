// Versions from a publisher to subscribers, over host memory.

#include <thread>

#include "channel.hpp"
#include "rollring/consumer.hpp"

namespace rollring::test {

TEST_CASE("versions arrive whole, part by part") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    for (const std::uint64_t slot_bytes : {std::uint64_t{0}, std::uint64_t{4096}}) {
        CAPTURE(slot_bytes);
        Publisher publisher = publisher_on(ring, trainer, {.slot_bytes = slot_bytes});
        Subscriber subscriber = subscriber_on(ring, engine);
        CHECK((publisher.parts() == 1) == (slot_bytes == 0));
        CHECK(subscriber.live_version() == -1);
        const std::int64_t first = slot_bytes == 0 ? 1 : 100;
        for (std::int64_t version = first; version < first + 5; version++) {
            std::thread engine_side([&] {
                const auto taken = take(subscriber);
                REQUIRE_OK(taken);
                CHECK(*taken == version);
            });
            Transaction transaction = send(publisher, trainer, version);
            const auto report = transaction.commit(patience());
            REQUIRE_OK(report);
            CHECK(report->subscribers == 1);
            CHECK(report->payload_bytes == publisher.payload_bytes());
            engine_side.join();
            CHECK(engine.holds(version));
            CHECK(subscriber.live_version() == version);
            CHECK(subscriber.state() == SubscriberState::ready);
            const auto stat = stat_ring(ring.name());
            REQUIRE_OK(stat);
            CHECK(stat->policy_version == version);
        }
    }
}

TEST_CASE("a version that is decided counts, and its transaction ends with commit") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {});
    Subscriber subscriber = subscriber_on(ring, engine);
    for (const bool commits : {true, false}) {
        const std::int64_t version = commits ? 1 : 2;
        std::thread engine_side([&] { CHECK(take(subscriber).value_or(-1) == version); });
        Transaction transaction = send(publisher, trainer, version);
        const auto decided = transaction.decide(patience());
        REQUIRE_OK(decided);
        CHECK(decided->subscribers == 1);
        engine_side.join();  // it serves the version already
        CHECK(publisher.committed_version() == version);
        CHECK(publisher.begin(version + 1).error().code == Errc::busy);
        if (commits) {
            CHECK(transaction.commit(patience())->subscribers == 1);
        } else {
            transaction.abort("too late for that");
        }
        CHECK(publisher.committed_version() == version);
        CHECK(transaction.decide(patience()).error().code == Errc::invalid_argument);
    }
    CHECK(engine.holds(2));
}

TEST_CASE("no handle is passed and nothing mapped after attach") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = 4096});
    Subscriber subscriber = subscriber_on(ring, engine);
    const std::uint64_t passed = publisher.handles_passed();
    const std::uint64_t imports = subscriber.imports();
    CHECK(passed == 4);  // control, manifest, two slots
    CHECK(imports == 2);
    std::thread engine_side([&] {
        for (int i = 0; i < 50; i++) REQUIRE_OK(take(subscriber));
    });
    for (std::int64_t version = 1; version <= 50; version++) {
        REQUIRE_OK(send(publisher, trainer, version).commit(patience()));
    }
    engine_side.join();
    CHECK(publisher.handles_passed() == passed);
    CHECK(subscriber.imports() == imports);
}

}  // namespace rollring::test
