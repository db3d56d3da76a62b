// Engines that come, stop or end while others read the trainer's tensors: none that the trainer
// does not wait for ever serves bytes that it read there.

#include <thread>

#include "direct_pair.hpp"
#include "rollring/relay.hpp"
#include "stranger.hpp"

namespace rollring::test {

TEST_CASE("an engine that comes while others read joins them, and later lacks the version") {
    DirectPair pair({.staging = Staging::delta});
    Tensors early_tensors = small_model();
    Tensors late_tensors = small_model();
    Transaction version = pair.send(1);
    Subscriber early = pair.attach({.name = "early"}, early_tensors);
    REQUIRE_OK(pair.publisher->wait_subscribers(2, patience()));
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    const auto waited = version.wait_staged(soon());
    REQUIRE(!waited);
    CHECK(waited.error().message.contains("'early'"));
    std::thread taking([&] { CHECK(take(early).value_or(-1) == 1); });
    REQUIRE_OK(version.wait_staged(patience()));

    Subscriber late = pair.attach({.name = "late"}, late_tensors);
    REQUIRE_OK(pair.publisher->wait_subscribers(3, patience()));
    pair.trainer.fill(50);  // as it may now
    CHECK(late.next(soon()).error().code == Errc::timed_out);
    const auto report = version.commit(patience());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 2);
    REQUIRE_OK(update->adopt(patience()));
    taking.join();
    CHECK((pair.engine.holds(1) && early_tensors.holds(1)));
    CHECK(late.next(soon()).error().code == Errc::timed_out);
    CHECK(pair.publisher->behind() == 1);

    pair.trainer.fill(1);  // resend is for unchanged tensors
    std::thread again([&] { CHECK(take(late).value_or(-1) == 1); });
    const auto resent = pair.publisher->resend(patience());
    REQUIRE_OK(resent);
    CHECK(resent->subscribers == 1);
    again.join();
    CHECK(late_tensors.holds(1));
    CHECK(pair.publisher->behind() == 0);
}

TEST_CASE("an engine that comes after a commit reads nothing until the version is sent again") {
    DirectPair pair;
    pair.pass(1);  // without other engines
    Tensors late_tensors = small_model();
    Subscriber late = pair.attach({.name = "late", .in_place = false}, late_tensors);
    REQUIRE_OK(pair.publisher->wait_subscribers(2, patience()));
    CHECK(pair.publisher->behind() == 1);
    CHECK(late.next(soon()).error().code == Errc::timed_out);
    std::thread other([&] { CHECK(take(late).value_or(-1) == 2); });
    pair.pass(2);
    other.join();
    CHECK(late_tensors.holds(2));
    CHECK(pair.publisher->behind() == 0);
}

TEST_CASE(
    "a version that is aborted while engines read it leaves each as its way of loading says") {
    for (const bool delta : {true, false}) {
        for (const bool in_place : {true, false}) {
            CAPTURE(delta);
            CAPTURE(in_place);
            DirectPair pair(
                {.in_place = in_place, .staging = delta ? Staging::delta : Staging::copy});
            pair.pass(1);
            {
                Transaction version = pair.send(2);
                auto update = pair.subscriber->next(patience());
                REQUIRE_OK(update);
                REQUIRE_OK(update->load(patience()));
                version.abort("the loss is not a number");
                pair.trainer.fill(66);
                REQUIRE_OK(update->stage(patience()));  // it does not know yet
                CHECK(update->adopt(patience()).error().code == Errc::aborted);
            }
            const bool whole = delta || !in_place;
            CHECK(pair.subscriber->live_version() == 1);
            CHECK(pair.subscriber->state() ==
                  (whole ? SubscriberState::ready : SubscriberState::poisoned));
            if (delta) CHECK(pair.engine.holds(1));
            CHECK(pair.publisher->behind() == (whole ? 0 : 1));
            pair.pass(3);
            CHECK(pair.subscriber->state() == SubscriberState::ready);
        }
    }
}

TEST_CASE("an expelled engine takes no slot with it, and adopts nothing that it read") {
    DirectPair pair({.name = "stuck", .staging = Staging::delta});
    Tensors tensors = small_model();
    Subscriber other = pair.attach({.name = "other"}, tensors);
    std::thread first([&] { REQUIRE_OK(take(other)); });
    pair.pass(1);
    first.join();
    FakeDevice& gpu = fake_device(engine_gpu);
    Transaction version = pair.send(2);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    CHECK(update->load(Deadline::now()).error().code == Errc::timed_out);
    gpu.go_on();
    CHECK(version.commit(soon()).error().code == Errc::timed_out);
    std::thread taking([&] { REQUIRE_OK(take(other)); });
    REQUIRE_OK(pair.publisher->expel("stuck"));
    const auto report = version.commit(patience());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 1);
    taking.join();
    CHECK(tensors.holds(2));
    pair.trainer.fill(99);
    SUBCASE("when it reads on") {
        const auto loaded = update->load(patience());
        const auto staged = loaded ? update->stage(patience()) : loaded;
        REQUIRE(!staged);
        CHECK(staged.error().code == Errc::expelled);
    }
    SUBCASE("when others have gone on") {
        std::thread next([&] { CHECK(take(other).value_or(-1) == 3); });
        REQUIRE_OK(pair.send(3).commit(patience()));
        next.join();
        CHECK(tensors.holds(3));
        const auto loaded = update->load(patience());
        const auto staged = loaded ? update->stage(patience()) : loaded;
        REQUIRE(!staged);
        CHECK(staged.error().code == Errc::expelled);
    }
    CHECK(pair.engine.holds(1));
    CHECK(pair.subscriber->live_version() == 1);
}

TEST_CASE("an expelled engine that had compared all of a version does not adopt it") {
    DirectPair pair({.staging = Staging::delta});
    pair.pass(1);
    Transaction version = pair.send(2);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(pair.publisher->expel("engine"));
    REQUIRE_OK(version.commit(patience()));
    pair.trainer.fill(99);
    // Its part was filled before: it finds out once it has read.
    auto loaded = update->load(patience());
    if (loaded) loaded = update->stage(patience());
    REQUIRE(!loaded);
    CHECK(loaded.error().code == Errc::expelled);
    CHECK(pair.engine.holds(1));
}

TEST_CASE("a connection that closes while its process lives holds up no version") {
    DirectPair pair;
    std::optional<Stranger> stranger(std::in_place, pair.ring);
    Transaction version = pair.send(1);
    CHECK(version.commit(soon()).error().code == Errc::timed_out);
    stranger->socket = Fd();  // its byte is still held
    std::thread taking([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(version.commit(patience()));
    taking.join();
    pair.pass(2);
    stranger.reset();
}

TEST_CASE("a publisher that closes waits until engines have closed its tensors") {
    DirectPair pair;
    pair.pass(1);
    std::thread closing([&] { pair.publisher.reset(); });
    CHECK(pair.subscriber->next(patience()).error().code == Errc::peer_gone);
    CHECK(open_allocations() == 2);
    pair.subscriber.reset();
    CHECK(open_allocations() == 0);
    closing.join();
}

TEST_CASE("a version that is read where it lies is not handed on to other nodes") {
    DirectPair pair;
    const auto bytes = RelaySubscriber::part_bytes(*pair.subscriber);
    REQUIRE(!bytes);
    CHECK(bytes.error().code == Errc::unsupported);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    const auto lent = RelayTransaction::lend_part(*version, patience());
    REQUIRE(!lent);
    CHECK(lent.error().code == Errc::unsupported);
}

TEST_CASE("the next publisher's engines read the same tensors, and those of before attach again") {
    DirectPair pair({.staging = Staging::delta});
    pair.pass(1);
    pair.subscriber.reset();
    pair.publisher.reset();
    auto next = Publisher::create(pair.ring.name(), pair.trainer.list, direct_on_gpu);
    REQUIRE_OK(next);
    pair.publisher.emplace(std::move(*next));
    pair.subscriber.emplace(
        pair.attach({.held_version = 1, .staging = Staging::delta}, pair.engine));
    pair.pass(2);
}

}  // namespace rollring::test
