// A subscriber that the publisher went on without finds out before it reads what is not its own.

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
    // What was filled before is still its own; what came after is not.
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

}  // namespace rollring::test
