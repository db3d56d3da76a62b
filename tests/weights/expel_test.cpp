// A subscriber that the publisher went on without finds out before it reads what is not its own.

#include <fstream>
#include <thread>

#include "channel.hpp"

namespace rollring::test {

TEST_CASE("who was expelled between two parts gets no part that was filled since") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors stuck_tensors = small_model();
    Tensors tensors = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slot_bytes = 4096});
    Subscriber stuck = subscriber_on(ring, stuck_tensors, {.name = "stuck"});
    Subscriber other = subscriber_on(ring, tensors, {.name = "other"});
    REQUIRE(publisher.parts() > 3);

    trainer.fill(1);
    auto version = publisher.begin(1);
    REQUIRE_OK(version);
    std::thread engine([&] { REQUIRE_OK(take(other)); });
    const auto late = version->put_all(Deadline::after_ms(100));
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);
    CHECK(late.error().message.contains("'stuck'"));
    auto update = stuck.next(patience());
    REQUIRE_OK(update);
    const auto first = update->part(0, patience());
    REQUIRE_OK(first);
    const std::byte* at = first->front().data;
    const std::vector<std::byte> lent(at, at + first->front().elements * 4);

    REQUIRE_OK(publisher.expel("stuck"));
    REQUIRE_OK(version->put_all(patience()));
    REQUIRE_OK(version->publish());
    const auto report = version->commit(patience());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 1);
    engine.join();
    CHECK(tensors.holds(1));

    CHECK(std::memcmp(at, lent.data(), lent.size()) == 0);
    REQUIRE_OK(update->done_reading(0));
    // A part that was filled before is still its own; a later one is not.
    Errc told{};
    std::uint32_t read = 1;
    for (; told == Errc{} && read < update->parts(); read++) {
        const auto part = update->part(read, patience());
        if (!part) {
            told = part.error().code;
        } else {
            REQUIRE_OK(update->done_reading(read));
        }
    }
    CHECK(told == Errc::expelled);
    CHECK(read <= 3);
    CHECK(stuck.state() == SubscriberState::poisoned);
    const auto next = stuck.next(patience());
    REQUIRE(!next);
    CHECK(next.error().code == Errc::expelled);
}

TEST_CASE("a subscriber that cannot take a version says so: nobody waits for it") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 16, .slot_bytes = 4096});
    Subscriber subscriber = subscriber_on(ring, engine);
    Transaction version = send(publisher, trainer, 1);
    {
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->part(0, patience()));
    }
    const auto refused = version.commit(patience());
    REQUIRE(!refused);
    CHECK(refused.error().code == Errc::rejected);
    CHECK(refused.error().message.contains("'engine'"));
    CHECK(subscriber.state() == SubscriberState::poisoned);
    version.abort();
    std::thread engine_side([&] { REQUIRE_OK(take(subscriber)); });
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    engine_side.join();
    CHECK(engine.holds(2));
}

namespace {

// Flips a bit of the first piece in every slot that this process publishes from.
int damage_slots() {
    std::ifstream maps("/proc/self/maps");
    int damaged = 0;
    for (std::string line; std::getline(maps, line);) {
        if (!line.contains("memfd:rollring.weights") || !line.contains("rw-s")) continue;
        *reinterpret_cast<unsigned char*>(std::stoull(line, nullptr, 16)) ^= 4;
        damaged++;
    }
    return damaged;
}

}  // namespace

TEST_CASE("a damaged part is found, and the publisher told by whom") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.checksums = true});
    Subscriber subscriber = subscriber_on(ring, engine, {.in_place = false});
    std::thread engine_side([&] { REQUIRE_OK(take(subscriber)); });
    REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
    engine_side.join();
    Transaction version = send(publisher, trainer, 2);
    REQUIRE(damage_slots() == 2);
    const auto taken = take(subscriber);
    REQUIRE(!taken);
    CHECK(taken.error().code == Errc::checksum_mismatch);
    CHECK(taken.error().message.contains("'embed'"));
    CHECK(subscriber.state() == SubscriberState::ready);
    CHECK(subscriber.live_version() == 1);
    CHECK(engine.holds(1));
    const auto refused = version.commit(patience());
    REQUIRE(!refused);
    CHECK(refused.error().code == Errc::rejected);
    CHECK(refused.error().message.contains("'engine'"));
    CHECK(refused.error().message.contains("did not arrive"));
    CHECK(stat_ring(ring.name())->policy_version == 1);
}

}  // namespace rollring::test
