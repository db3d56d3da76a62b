// What a publisher needs that hears from elsewhere which version counts: to know that all have
// staged one before it counts, and to send the version of a predecessor.

#include <thread>

#include "channel.hpp"
#include "rollring/consumer.hpp"

namespace rollring::test {

TEST_CASE("a version that all have staged counts only once it is committed") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Subscriber subscriber = subscriber_on(ring, engine);
    Transaction transaction = send(publisher, trainer, 1);
    CHECK(transaction.wait_staged(soon()).error().code == Errc::timed_out);
    auto update = subscriber.next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(transaction.wait_staged(patience()));
    CHECK(update->adopt(soon()).error().code == Errc::timed_out);
    CHECK(stat_ring(ring.name())->policy_version == -1);
    const auto report = transaction.commit(patience());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 1);
    REQUIRE_OK(update->adopt(patience()));
    CHECK(stat_ring(ring.name())->policy_version == 1);
    CHECK(transaction.wait_staged(soon()).error().code == Errc::invalid_argument);
}

TEST_CASE("who gives up what all have staged does not hold its commit, and is behind") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Subscriber subscriber = subscriber_on(ring, engine);
    Transaction transaction = send(publisher, trainer, 1);
    {
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(transaction.wait_staged(patience()));
        update->reject("no");
    }
    REQUIRE_OK(transaction.commit(patience()));
    CHECK(publisher.behind() == 1);
    std::thread other([&] { CHECK(*take(subscriber) == 1); });
    REQUIRE_OK(publisher.resend(patience()));
    other.join();
    CHECK(engine.holds(1));
}

TEST_CASE("a version that all have staged can be given up") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Subscriber subscriber = subscriber_on(ring, engine);
    Transaction transaction = send(publisher, trainer, 1);
    std::thread other([&] { CHECK(take(subscriber).error().code == Errc::aborted); });
    REQUIRE_OK(transaction.wait_staged(patience()));
    transaction.abort("the trainer gave it up");
    other.join();
    CHECK(stat_ring(ring.name())->policy_version == -1);
}

TEST_CASE("a successor sends the version that its predecessor has committed, and none before it") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    {
        Publisher first = publisher_on(ring, trainer);
        REQUIRE_OK(send(first, trainer, 5).commit(patience()));
    }
    Publisher publisher = publisher_on(ring, trainer);
    CHECK(publisher.begin_again().error().code == Errc::invalid_argument);
    CHECK(publisher.resume(4).error().code == Errc::stale_version);
    REQUIRE_OK(publisher.resume(5));
    CHECK(publisher.committed_version() == 5);
    Subscriber subscriber = subscriber_on(ring, engine);
    REQUIRE_OK(publisher.wait_subscribers(1, patience()));
    CHECK(publisher.behind() == 1);
    std::thread other([&] { CHECK(*take(subscriber) == 5); });
    REQUIRE_OK(publisher.resend(patience()));
    other.join();
    CHECK(engine.holds(5));
    CHECK(publisher.behind() == 0);
    const Transaction open = send(publisher, trainer, 6);
    CHECK(publisher.resume(6).error().code == Errc::busy);
}

TEST_CASE("a version that was committed elsewhere is the ring's once it was sent") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Subscriber subscriber = subscriber_on(ring, engine);
    {
        std::thread other([&] { CHECK(take(subscriber).error().code == Errc::aborted); });
        Transaction given_up = send(publisher, trainer, 8);
        REQUIRE_OK(given_up.wait_staged(patience()));
        given_up.abort("it was not committed there");
        other.join();
    }
    trainer.fill(7);
    REQUIRE_OK(publisher.resume(7));
    CHECK(stat_ring(ring.name())->policy_version == -1);
    std::thread other([&] { CHECK(*take(subscriber) == 7); });
    REQUIRE_OK(publisher.resend(patience()));
    other.join();
    CHECK(engine.holds(7));
    CHECK(stat_ring(ring.name())->policy_version == 7);
    CHECK(publisher.begin(8).error().code == Errc::stale_version);
}

TEST_CASE("a subscriber tells its publisher from the next one") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    std::int64_t ids[2] = {0, 0};
    for (auto& id : ids) {
        const Publisher publisher = publisher_on(ring, trainer);
        id = subscriber_on(ring, engine).publisher_id();
        CHECK(id == subscriber_on(ring, engine).publisher_id());
    }
    CHECK(ids[0] != ids[1]);
}

TEST_CASE("there is no version -1 to resume") {
    const TestRing ring;
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    CHECK(publisher.resume(-1).error().code == Errc::stale_version);
    CHECK(publisher.committed_version() == -1);
}

}  // namespace rollring::test
