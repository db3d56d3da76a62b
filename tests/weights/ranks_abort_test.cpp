// Several ranks: a version that one aborts, none commits.

#include <thread>

#include "channel.hpp"

namespace rollring::test {
namespace {

struct Rank {
    Rank(const TestRing& ring, std::uint32_t number)
        : publisher(publisher_on(ring, trainer, {.rank = number, .ranks = 2, .slot_bytes = 4096})),
          subscriber(subscriber_on(ring, engine, {.rank = number, .in_place = false})) {}
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher;
    Subscriber subscriber;
};

void sync(Rank (&ranks)[2], std::int64_t version) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks) {
        threads.emplace_back([&] { REQUIRE_OK(take(rank.subscriber)); });
        threads.emplace_back(
            [&] { REQUIRE_OK(send(rank.publisher, rank.trainer, version).commit(patience())); });
    }
    for (auto& thread : threads) thread.join();
    for (const Rank& rank : ranks) {
        CHECK(rank.engine.holds(version));
        CHECK(rank.subscriber.live_version() == version);
    }
}

}  // namespace

TEST_CASE("a version that a rank aborts is aborted for all of them") {
    const TestRing ring;
    Rank ranks[2] = {{ring, 0}, {ring, 1}};
    sync(ranks, 1);
    for (std::int64_t version = 2; version < 6; version += 2) {
        const std::size_t aborts = version == 2 ? 1 : 0;
        std::thread engines[2];
        for (std::size_t i = 0; i < 2; i++) {
            engines[i] = std::thread([&, i] {
                const auto taken = take(ranks[i].subscriber);
                REQUIRE(!taken);
                CHECK(taken.error().code == Errc::aborted);
            });
        }
        Transaction first = send(ranks[1 - aborts].publisher, ranks[1 - aborts].trainer, version);
        Transaction second = send(ranks[aborts].publisher, ranks[aborts].trainer, version);
        second.abort("the optimizer diverged");
        const auto report = first.commit(patience());
        REQUIRE(!report);
        CHECK(report.error().code == Errc::aborted);
        first.abort();
        for (auto& engine : engines) engine.join();
        CHECK(stat_ring(ring.name())->policy_version == version - 1);
        sync(ranks, version + 1);
        CHECK(stat_ring(ring.name())->policy_version == version + 1);
    }
}

TEST_CASE("a rank that aborts before it has met the others tells them, too") {
    const TestRing ring;
    Rank ranks[2] = {{ring, 0}, {ring, 1}};
    std::thread engines[2];
    for (std::size_t i = 0; i < 2; i++) {
        engines[i] = std::thread([&, i] {
            const auto taken = take(ranks[i].subscriber);
            REQUIRE(!taken);
            CHECK(taken.error().code == Errc::aborted);
        });
    }
    Transaction first = send(ranks[0].publisher, ranks[0].trainer, 1);
    Transaction second = send(ranks[1].publisher, ranks[1].trainer, 1);
    second.abort("the optimizer diverged");
    const auto report = first.commit(patience());
    REQUIRE(!report);
    CHECK(report.error().code == Errc::aborted);
    first.abort();
    for (auto& engine : engines) engine.join();
    sync(ranks, 2);
}

}  // namespace rollring::test
