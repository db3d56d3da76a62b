// A publisher that hears from elsewhere which version counts needs two abilities: to know that all
// have staged one before it counts, and to send the version of a predecessor.

#include <thread>

#include "channel.hpp"
#include "rollring/consumer.hpp"
#include "rollring/relay.hpp"

namespace rollring::test {

TEST_CASE_FIXTURE(TrainerAndEngine,
                  "a version that all have staged counts only once it is committed") {
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

TEST_CASE_FIXTURE(TrainerAndEngine,
                  "who gives up what all have staged does not hold its commit, and is behind") {
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

TEST_CASE_FIXTURE(TrainerAndEngine, "a version that all have staged can be given up") {
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

TEST_CASE_FIXTURE(TrainerAndEngine,
                  "a version that was committed elsewhere is the ring's once it was sent") {
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

TEST_CASE("parts of one channel are handed on to another one as they lie in their slots") {
    constexpr std::uint32_t slots = 3;
    const TestRing ring;
    const TestRing node;
    Tensors trainer = small_model();
    Tensors described = small_model();
    Tensors engine = small_model();
    for (Tensors* const tensors : {&trainer, &described, &engine}) {
        WeightTensor tied = tensors->list().front();
        tied.name = "head";
        tied.tied = tensors != &engine;
        tensors->list().push_back(tied);
    }
    Publisher publisher =
        publisher_on(ring, trainer, {.slots = slots, .slot_bytes = 4096, .checksums = true});
    auto source = Subscriber::attach(ring.name(), {}, {.name = "source"}, patience());
    REQUIRE_OK(source);
    Publisher relay = publisher_on(node, described,
                                   {.slots = slots,
                                    .slot_bytes = RelaySubscriber::part_bytes(*source).value(),
                                    .checksums = true,
                                    .handed_on = true});
    REQUIRE(relay.parts() == publisher.parts());
    REQUIRE(relay.parts() > slots);
    Subscriber subscriber = subscriber_on(node, engine);
    std::thread sender([&] { REQUIRE_OK(send(publisher, trainer, 1).commit(patience())); });
    std::thread other([&] { CHECK(*take(subscriber) == 1); });
    auto update = source->next(patience());
    REQUIRE_OK(update);
    auto transaction = relay.begin(1);
    REQUIRE_OK(transaction);
    std::uint32_t done = 0;
    const auto done_one = [&] {
        REQUIRE_OK(RelayTransaction::part_written(*transaction));
        REQUIRE_OK(update->done_reading(done++));
    };
    CHECK(RelayTransaction::part_written(*transaction).error().code == Errc::invalid_argument);
    CHECK(transaction->put_all(soon()).error().code == Errc::invalid_argument);
    for (std::uint32_t part = 0; part < relay.parts(); part++) {
        if (part == slots) {  // all are lent, at both ends
            CHECK(update->part(part, soon()).error().code == Errc::timed_out);
            CHECK(RelayTransaction::lend_part(*transaction, soon()).error().code ==
                  Errc::timed_out);
            CHECK(update->done_reading(part).error().code == Errc::invalid_argument);
        }
        if (part >= slots) done_one();
        const auto pieces = update->part(part, patience());
        REQUIRE_OK(pieces);
        const auto lent = RelayTransaction::lend_part(*transaction, patience());
        REQUIRE_OK(lent);
        std::memcpy(lent->data(), pieces->front().data, lent->size());
    }
    CHECK(RelayTransaction::lend_part(*transaction, soon()).error().code == Errc::invalid_argument);
    CHECK(transaction->wait_staged(soon()).error().code == Errc::invalid_argument);
    REQUIRE_OK(transaction->publish());
    while (done < relay.parts()) done_one();
    REQUIRE_OK(transaction->commit(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(update->adopt(patience()));
    sender.join();
    other.join();
    CHECK(engine.holds(1));
}

TEST_CASE("a part that is lent is given up with its version") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = 4096});
    Subscriber subscriber = subscriber_on(ring, engine);
    {
        auto first = publisher.begin(1);
        REQUIRE_OK(first);
        for (int slot = 0; slot < 2; slot++)
            REQUIRE_OK(RelayTransaction::lend_part(*first, patience()));
    }
    trainer.fill(2);
    std::thread other([&] { CHECK(*take(subscriber) == 2); });
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    other.join();
    CHECK(engine.holds(2));
}

TEST_CASE("there is no version -1 to resume") {
    const TestRing ring;
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    CHECK(publisher.resume(-1).error().code == Errc::stale_version);
    CHECK(publisher.committed_version() == -1);
}

TEST_CASE_FIXTURE(TrainerAndEngine,
                  "another thread ends a wait of either end, whatever its deadline") {
    Errc answer = Errc::invalid_argument;
    std::thread engines([&] { answer = subscriber.next(Deadline::never()).error().code; });
    subscriber.interrupt();
    engines.join();
    CHECK(answer == Errc::timed_out);

    Transaction transaction = send(publisher, trainer, 1);
    std::thread trainers([&] { answer = transaction.commit(Deadline::never()).error().code; });
    publisher.interrupt();
    trainers.join();
    CHECK(answer == Errc::timed_out);

    std::thread other([&] { CHECK(*take(subscriber) == 1); });
    REQUIRE_OK(transaction.commit(Deadline::never()));
    other.join();
}

}  // namespace rollring::test
