// Engines that another process asks to leave the committed version.

#include <unistd.h>

#include <thread>

#include "channel.hpp"

namespace rollring::test {
namespace {

SubscriberOptions growing_list() {
    return {.staging = Staging::delta, .delta_fallback = DeltaFallback::beside};
}

// A trainer, and engines that serve version 2 and had version 1 before.
struct Fleet {
    explicit Fleet(const std::vector<SubscriberOptions>& options) {
        tensors.reserve(options.size());
        for (std::size_t i = 0; i < options.size(); i++) {
            tensors.push_back(small_model());
            SubscriberOptions own = options[i];
            own.name = std::to_string(i);
            engines.push_back(subscriber_on(ring, tensors[i], own));
        }
        for (const std::int64_t version : {1, 2}) pass(version);
    }
    void pass(std::int64_t version) {
        std::thread taking([&] {
            for (Subscriber& engine : engines) steps.push_back(next_of(engine));
            for (Update& update : steps) REQUIRE_OK(update.adopt(patience()));
            steps.clear();
        });
        REQUIRE_OK(send(publisher, trainer, version).commit(patience()));
        taking.join();
    }
    // The next version, complete.
    static Update next_of(Subscriber& engine) {
        auto update = engine.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        return std::move(*update);
    }
    // Asks, and returns the only answer.
    RollbackAnswer ask(Deadline deadline = Deadline::now()) {
        auto report = ask_rollback(ring.name(), deadline);
        REQUIRE_OK(report);
        CHECK(report->version == publisher.committed_version());
        REQUIRE(report->engines.size() == 1);
        return report->engines[0];
    }

    TestRing ring{};
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    std::vector<Tensors> tensors;
    std::vector<Subscriber> engines;
    std::vector<Update> steps;
};

SubscriberOptions taking_requests(SubscriberOptions options = growing_list()) {
    options.rollback_when_asked = true;
    return options;
}

}  // namespace

TEST_CASE(
    "an engine that is asked to leave its version hears it in next, and answers by rollback") {
    Fleet fleet({taking_requests()});
    Subscriber& engine = fleet.engines[0];
    std::thread serving([&] {
        const auto asked = engine.next(patience());  // a wait that the request ends
        REQUIRE(!asked);
        CHECK(asked.error().code == Errc::rollback_asked);
        CHECK(asked.error().message.contains("asked to leave version 2"));
        CHECK(fleet.tensors[0].holds(2));
        REQUIRE_OK(engine.rollback());
        CHECK(engine.next(Deadline::now()).error().code == Errc::timed_out);  // once
    });
    const RollbackAnswer answer = fleet.ask(patience());
    serving.join();
    CHECK(answer.outcome == RollbackOutcome::rolled_back);
    CHECK((answer.subscriber == "0" && answer.rank == 0 && answer.live_version == 1));
    CHECK(answer.pid == static_cast<std::uint32_t>(getpid()));
    CHECK(fleet.tensors[0].holds(1));
    // The version is left already, and the next one is taken as usual.
    CHECK(fleet.ask().outcome == RollbackOutcome::not_live);
    CHECK(engine.next(Deadline::now()).error().code == Errc::timed_out);
    fleet.pass(3);
    CHECK(fleet.tensors[0].holds(3));
}

TEST_CASE("each engine of a channel has its own answer") {
    SubscriberOptions copies{.staging = Staging::copy};
    Fleet fleet({taking_requests(), growing_list(), copies, taking_requests()});
    REQUIRE_OK(fleet.engines[3].rollback());
    const auto report = ask_rollback(fleet.ring.name(), soon());
    REQUIRE_OK(report);
    REQUIRE(report->engines.size() == 4);
    CHECK(report->engines[0].outcome == RollbackOutcome::silent);
    for (const std::size_t i : {1U, 2U}) {
        CHECK(report->engines[i].outcome == RollbackOutcome::refused);
        CHECK(report->engines[i].why.contains("rollback_when_asked"));
    }
    CHECK(report->engines[3].outcome == RollbackOutcome::not_live);
    CHECK(report->engines[3].live_version == 1);
    // The one that was silent answers later.
    CHECK(fleet.engines[0].next(Deadline::now()).error().code == Errc::rollback_asked);
    REQUIRE_OK(fleet.engines[0].rollback());
    for (const std::size_t i : {0U, 3U}) CHECK(fleet.tensors[i].holds(1));
    for (const std::size_t i : {1U, 2U}) CHECK(fleet.tensors[i].holds(2));
    CHECK(fleet.engines[2].next(Deadline::now()).error().code == Errc::timed_out);
}

TEST_CASE("an engine that has no way back says why, and one may refuse") {
    Fleet fleet({taking_requests()});
    Subscriber& engine = fleet.engines[0];
    CHECK(fleet.ask().outcome == RollbackOutcome::silent);
    CHECK(engine.next(Deadline::now()).error().code == Errc::rollback_asked);
    engine.refuse("an evaluation is running");
    const auto again = fleet.ask();  // a request of its own
    CHECK(again.outcome == RollbackOutcome::silent);
    CHECK(engine.next(Deadline::now()).error().code == Errc::rollback_asked);
    engine.refuse("an evaluation is running");
    CHECK(fleet.tensors[0].holds(2));
    {
        // The list of version 2 ends when version 3 begins to load.
        auto open = send(fleet.publisher, fleet.trainer, 3);
        auto update = engine.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        CHECK(engine.rollback().error().code == Errc::busy);
        CHECK(fleet.ask().outcome == RollbackOutcome::silent);
        open.abort("the loss is not a number");
        update->reject("changed its mind");
    }
    std::thread serving(
        [&] { CHECK(engine.next(Deadline::after_ms(300)).error().code == Errc::timed_out); });
    const RollbackAnswer answer = fleet.ask(patience());
    serving.join();
    CHECK(answer.outcome == RollbackOutcome::refused);
    CHECK(answer.why.contains("no version to go back to"));
    CHECK(fleet.tensors[0].holds(2));
}

TEST_CASE(
    "an engine that leaves while it is asked is gone, and one that takes the version is waited "
    "for") {
    Fleet fleet({taking_requests()});
    {
        // It serves version 3 in a moment: that is not an engine without it.
        auto open = send(fleet.publisher, fleet.trainer, 3);
        Update update = Fleet::next_of(fleet.engines[0]);
        REQUIRE_OK(open.commit(patience()));
        CHECK(fleet.ask().outcome == RollbackOutcome::silent);
        REQUIRE_OK(update.adopt(patience()));
    }
    CHECK(fleet.engines[0].next(Deadline::now()).error().code == Errc::rollback_asked);
    REQUIRE_OK(fleet.engines[0].rollback());
    CHECK(fleet.tensors[0].holds(2));
    fleet.pass(4);
    std::thread asking([&] {
        const auto report = ask_rollback(fleet.ring.name(), patience());
        REQUIRE_OK(report);
        REQUIRE(report->engines.size() == 1);
        CHECK(report->engines[0].outcome == RollbackOutcome::gone);
    });
    // It has heard the request, and ends without an answer.
    CHECK(fleet.engines[0].next(patience()).error().code == Errc::rollback_asked);
    fleet.engines.clear();
    asking.join();
}

TEST_CASE("nothing can be asked without a ring, a publisher or a version") {
    CHECK(ask_rollback("no-such-ring", Deadline::now()).error().code == Errc::not_found);
    const TestRing ring;
    CHECK(ask_rollback(ring.name(), Deadline::now()).error().code == Errc::not_found);
    Tensors trainer = small_model();
    const Publisher publisher = publisher_on(ring, trainer);
    const auto early = ask_rollback(ring.name(), Deadline::now());
    REQUIRE(!early);
    CHECK(early.error().code == Errc::not_found);
    CHECK(early.error().message.contains("committed version"));
    Tensors engine = small_model();
    const auto copies =
        Subscriber::attach(ring.name(), engine.list(), {.rollback_when_asked = true}, patience());
    REQUIRE(!copies);
    CHECK(copies.error().code == Errc::invalid_argument);
}

}  // namespace rollring::test
