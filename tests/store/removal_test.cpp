// Goal: a store that is removed, as a whole or in part, is an error by name in every process that
// has it open, and no obstacle for the next one of that name.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>

#include "rollring/ring.hpp"
#include "support/in_child.hpp"
#include "test_store.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("store: it is removed though one of its rings is gone") {
    const TestStore named;
    const std::string clears = named.name + ".clears";
    for (const std::string& gone : {named.name, clears}) {
        static_cast<void>(named.open());
        REQUIRE(remove_ring(gone, false).has_value());
        CHECK(Store::remove(named.name).has_value() == (gone == clears));
        CHECK(failed_with(stat_ring(named.name), Errc::not_found));
        CHECK(failed_with(stat_ring(clears), Errc::not_found));
    }
}

TEST_CASE("store: where a file of it is removed under its users they all are told") {
    const TestStore world;
    const auto ids = numbers(1, 100);
    for (const std::string& gone : {world.name, world.name + ".clears"}) {
        Store one = world.open();
        Store other = world.open();
        const auto at = put(one, ids);
        REQUIRE(at.has_value());
        REQUIRE(shm_unlink(("/rollring." + std::to_string(getuid()) + "." + gone).c_str()) == 0);
        for (Store* store : {&one, &other}) {
            CHECK(comes([&] { return failed_with(look(*store, *at), Errc::closed); }));
            CHECK(failed_with(put(*store, ids), Errc::closed));
            CHECK(failed_with(store->clear({&*at, 1}, patience()), Errc::closed));
        }
        Store again = world.open();
        CHECK(reads(again, *put(again, ids), ids));
    }
}

TEST_CASE("store: a clear that waits is told that the store was removed") {
    const TestStore world;
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    const pid_t keeper = start_child([&] {  // the first one keeps the books
        Store store = world.open();
        if (!comes([&] { return store.stat().kept; })) return 1;
        if (write(pipes[1], "k", 1) != 1) return 2;
        for (;;) pause();
    });
    char kept = 0;
    REQUIRE(read(pipes[0], &kept, 1) == 1);
    close(pipes[0]);
    close(pipes[1]);
    Store store = world.open();
    const auto ids = numbers(1, 100);
    const auto at = put(store, ids);
    REQUIRE(at.has_value());
    kill(keeper, SIGSTOP);
    await_stopped(keeper);

    Result<void> cleared;
    std::thread waiting([&] { cleared = store.clear({&*at, 1}, patience()); });
    const auto asked = [&] {
        const auto stat = stat_ring(world.name + ".clears");
        return stat && std::ranges::any_of(stat->lanes, &LaneStat::depth_records);
    };
    CHECK(comes(asked));
    CHECK(shm_unlink(("/rollring." + std::to_string(getuid()) + "." + world.name).c_str()) == 0);
    waiting.join();
    CHECK(failed_with(cleared, Errc::closed));
    kill_and_collect(keeper);
}

TEST_CASE("store: one whose ring of clears was removed as a leftover is opened as ever") {
    const TestStore named;
    const auto wanted = numbers(5, 9);
    Location at;
    {
        Store store = named.open();
        const auto put_at = put(store, wanted);
        REQUIRE(put_at.has_value());
        at = *put_at;
    }
    REQUIRE(remove_ring(named.name + ".clears", false).has_value());
    StoreOptions options = small;
    options.make = false;
    auto again = Store::open(named.name, options);
    REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().to_string()));
    CHECK(reads(*again, at, wanted));
    CHECK(again->clear({&at, 1}, patience()).has_value());
    CHECK_FALSE(reads(*again, at, wanted));
}
