// Engines that come late: the committed version waits for them in the slots, or is sent again.

#include <thread>

#include "channel.hpp"

namespace rollring::test {

TEST_CASE("a version that fits into the slots waits there for late joiners") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
    Subscriber subscriber = subscriber_on(ring, engine);
    CHECK(publisher.behind() == 0);
    CHECK(*take(subscriber) == 1);
    CHECK(engine.holds(1));
}

TEST_CASE("a larger one is sent again to those who lack it, and to no others") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors early = small_model();
    Tensors late = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = small_slot});
    Subscriber first = subscriber_on(ring, early, {.name = "first"});
    {
        std::thread engine([&] { REQUIRE_OK(take(first)); });
        REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
        engine.join();
    }
    Subscriber second = subscriber_on(ring, late, {.name = "second"});
    REQUIRE_OK(publisher.wait_subscribers(2, patience()));
    CHECK(publisher.behind() == 1);
    CHECK(second.next(soon()).error().code == Errc::timed_out);
    {
        std::thread engine([&] { CHECK(*take(second) == 1); });
        const auto report = publisher.resend(patience());
        REQUIRE_OK(report);
        CHECK(report->subscribers == 1);
        engine.join();
    }
    CHECK(late.holds(1));
    CHECK(publisher.behind() == 0);
    CHECK(first.next(soon()).error().code == Errc::timed_out);
    // And both get the next one.
    std::thread one([&] { CHECK(*take(first) == 2); });
    std::thread two([&] { CHECK(*take(second) == 2); });
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    one.join();
    two.join();
    CHECK((early.holds(2) && late.holds(2)));
}

TEST_CASE("sending again can be waited for bit by bit, given up, and begun anew") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors late = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = small_slot});
    CHECK(publisher.begin_again().error().code == Errc::invalid_argument);
    REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
    Subscriber subscriber = subscriber_on(ring, late);
    REQUIRE_OK(publisher.wait_subscribers(1, patience()));
    {
        auto again = publisher.begin_again();
        REQUIRE_OK(again);
        CHECK(again->version() == 1);
        CHECK(again->put_all(soon()).error().code == Errc::timed_out);  // without a reader
        CHECK(publisher.begin_again().error().code == Errc::busy);
    }
    CHECK(publisher.committed_version() == 1);
    CHECK(subscriber.next(soon()).error().code == Errc::timed_out);  // it sees what was given up
    CHECK(publisher.behind() == 1);
    auto again = publisher.begin_again();
    REQUIRE_OK(again);
    std::thread engine([&] { CHECK(*take(subscriber) == 1); });
    auto put = again->put_all(soon());
    while (!put && put.error().code == Errc::timed_out) put = again->put_all(soon());
    REQUIRE_OK(put);
    REQUIRE_OK(again->publish());
    auto report = again->commit(soon());
    while (!report && report.error().code == Errc::timed_out) report = again->commit(soon());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 1);
    engine.join();
    CHECK(late.holds(1));
    CHECK(publisher.behind() == 0);
}

TEST_CASE("who staged a version that was given up still lacks the one before it") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors tensors[2] = {small_model(), small_model()};
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = small_slot});
    REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
    Subscriber late = subscriber_on(ring, tensors[0], {.name = "late", .in_place = false});
    Subscriber other = subscriber_on(ring, tensors[1], {.name = "other"});
    REQUIRE_OK(publisher.wait_subscribers(2, patience()));
    CHECK(publisher.behind() == 2);
    {
        trainer.fill(2);
        std::thread engines[2];
        engines[0] = std::thread([&] { CHECK(take(late).error().code == Errc::aborted); });
        engines[1] = std::thread([&] {
            auto update = other.next(patience());
            REQUIRE_OK(update);
            REQUIRE_OK(update->load(patience()));
            while (stat_weights(ring.name())->front().subscribers[0].staged_version < 2) {
            }
            update->reject("no");
        });
        Transaction transaction = send(publisher, trainer, 2);
        CHECK(transaction.commit(patience()).error().code == Errc::rejected);
        transaction.abort();
        for (auto& engine : engines) engine.join();
    }
    CHECK(late.state() == SubscriberState::ready);
    CHECK(publisher.behind() == 2);
}

TEST_CASE("one that comes back says what it holds and is not sent it again") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    {
        Subscriber subscriber = subscriber_on(ring, engine);
        std::thread other([&] { REQUIRE_OK(take(subscriber)); });
        REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
        other.join();
    }
    Subscriber again = subscriber_on(ring, engine, {.held_version = 1});
    CHECK(again.live_version() == 1);
    CHECK(again.next(soon()).error().code == Errc::timed_out);
    CHECK(publisher.behind() == 0);
    std::thread other([&] { CHECK(*take(again) == 2); });
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    other.join();
}

}  // namespace rollring::test
