// Goal: any process can read and clear the values of a store, by their location; no death takes a
// value away, keeps it for ever, or makes other bytes of it.
#include "rollring/extras/store.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "support/in_child.hpp"
#include "test_store.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("store: what one process puts another reads and a third clears") {
    const TestStore world;
    Store store = world.open();
    const auto ids = numbers(100, 3000);
    const auto at = put(store, ids);
    REQUIRE(at.has_value());
    CHECK(in_child([&] { return reads(world.open(), *at, ids) ? 0 : 1; }) == 0);
    CHECK(in_child([&] {
              Store other = world.open();
              return clear(other, *at) && failed_with(look(other, *at), Errc::not_stored) ? 0 : 1;
          }) == 0);
    CHECK(failed_with(look(store, *at), Errc::not_stored));
    CHECK(failed_with(store.read(*at, {}), Errc::not_stored));
    CHECK(clear(store, *at));  // a missing value is passed over
    CHECK(store.stat().values == 0);
}

TEST_CASE("store: dtypes, shapes, tags and empty values come back as they were") {
    const TestStore world;
    Store store = world.open();
    const std::vector<double> wide(2 * 3 * 4 * 5, 0.25);
    const std::vector<StoreValue> values = {
        {.form = {.dtype = dtype_f64, .dims = 4, .shape = {2, 3, 4, 5}, .tag = 65'535},
         .data = wide.data()},
        {.form = {.dtype = {4, 16}, .dims = 2, .shape = {1, 9}}, .data = wide.data()},
        {.form = {.dtype = dtype_i64, .dims = 1, .shape = {0}}},
    };
    std::vector<Location> at(values.size());
    REQUIRE(store.put(values, at, patience()).has_value());
    for (std::size_t i = 0; i < values.size(); i++) {
        const auto form = look(store, at[i]);
        REQUIRE(form.has_value());
        CHECK(*form == values[i].form);
        std::vector<std::byte> copy(form->bytes());
        CHECK(store.read(at[i], copy).has_value());
        CHECK((copy.empty() || std::memcmp(copy.data(), values[i].data, copy.size()) == 0));
    }
    CHECK(failed_with(store.read(at[0], {}), Errc::invalid_argument));
}

TEST_CASE("store: the newest value of a key takes the place of the one before") {
    const TestStore world;
    Store store = world.open();
    const auto first = put(store, numbers(1, 10), "row");
    REQUIRE(first.has_value());
    // From another process, whose lane is another.
    CHECK(in_child([&] {
              Store other = world.open();
              const auto next = put(other, numbers(2, 10), "row");
              return next && comes([&] { return !look(other, *first); }) &&
                             reads(other, *next, numbers(2, 10))
                         ? 0
                         : 1;
          }) == 0);
    CHECK(failed_with(look(store, *first), Errc::not_stored));
    CHECK(store.stat().values == 1);
    const std::string_view keys[] = {"row", "never put"};
    CHECK(store.clear_keys(keys, patience()).has_value());
    CHECK(store.stat().values == 0);
}

TEST_CASE("store: a key has columns, which are cleared together") {
    const TestStore world;
    Store store = world.open();
    std::vector<StoreValue> cells;
    const auto row = numbers(1, 20);
    for (const char* const column : {"", "ids", "rewards"}) {
        for (const char* const key : {"1", "2"}) {
            cells.push_back(value_of(row, key));
            cells.back().column = column;
        }
    }
    std::vector<Location> at(cells.size());
    REQUIRE(store.put(cells, at, patience()).has_value());
    CHECK(comes([&] { return store.stat().values == 6; }));
    const std::string_view keys[] = {"1"};
    REQUIRE(store.clear_keys(keys, patience()).has_value());
    for (std::size_t i = 0; i < at.size(); i++) CHECK(reads(store, at[i], row) == (i % 2 != 0));
    REQUIRE(store.put({&cells[3], 1}, {&at[0], 1}, patience()).has_value());
    CHECK(comes([&] { return failed_with(look(store, at[3]), Errc::not_stored); }));
    CHECK(reads(store, at[5], row));
    CHECK(store.stat().values == 3);
}

TEST_CASE("store: a value that comes after its key was cleared stays") {
    const TestStore world;
    Store store = world.open();
    const std::string_view keys[] = {"row"};
    REQUIRE(store.clear_keys(keys, patience()).has_value());
    const auto at = put(store, numbers(3, 10), "row");
    REQUIRE(at.has_value());
    REQUIRE(put(store, numbers(4, 10)).has_value());
    CHECK(comes([&] { return reads(store, *at, numbers(3, 10)); }));
}

TEST_CASE("store: a full one says so, by name, and goes on when something is cleared") {
    const TestStore world;
    Store store = world.open();
    const auto row = numbers(5, 6000);  // five to a lane
    std::vector<Location> all;
    for (;;) {
        const auto at = put(store, row, {}, Deadline::after_ms(50));
        if (!at) {
            CHECK(failed_with(at, Errc::store_full));
            CHECK(at.error().message.find(std::to_string(all.size()) + " values") !=
                  std::string::npos);
            break;
        }
        all.push_back(*at);
    }
    CHECK(all.size() == 40);  // all lanes are used by one process
    CHECK(store.stat().lanes_taken == 8);
    CHECK(reads(store, all.back(), row));
    // The two that were put first in a lane: a line of the freed memory stays free.
    REQUIRE(clear(store, all[0]));
    REQUIRE(clear(store, all[1]));
    CHECK(put(store, row).has_value());
    const auto large = put(store, numbers(0, 40'000));
    CHECK(failed_with(large, Errc::too_large));
    CHECK(large.error().to_string().find("more capacity or fewer lanes") != std::string::npos);
    // One that fails leaves none of its values.
    const auto fits = numbers(0, 10);
    const std::vector<StoreValue> two = {value_of(fits), value_of(row)};
    std::vector<Location> at(2);
    const std::uint64_t before = store.stat().values;
    CHECK(failed_with(store.put(two, at, Deadline::now()), Errc::store_full));
    CHECK(comes([&] { return store.stat().values == before; }));
    CHECK(at[0] == Location{});
}

TEST_CASE("store: a value that stays keeps no more than its lane from others") {
    const TestStore world;
    Store store = world.open();
    const auto row = numbers(6, 2000);
    const auto stays = put(store, row);
    REQUIRE(stays.has_value());
    for (int i = 0; i < 1000; i++) {
        const auto at = put(store, row);
        REQUIRE(at.has_value());
        REQUIRE(clear(store, *at));
    }
    CHECK(reads(store, *stays, row));
    CHECK(store.stat().values == 1);
}

TEST_CASE("store: who puts may be killed, and its values stay until somebody clears them") {
    const TestStore world;
    Store store = world.open();
    const auto row = numbers(7, 500);
    for (int round = 0; round < 3; round++) {
        int pipes[2];
        REQUIRE(pipe(pipes) == 0);
        const pid_t pid = start_child([&] {
            Store other = world.open();
            const auto at = put(other, row, "killed");
            if (!at || write(pipes[1], &*at, sizeof *at) != sizeof *at) return 1;
            for (;;) pause();
        });
        Location at;
        REQUIRE(read(pipes[0], &at, sizeof at) == sizeof at);
        close(pipes[0]);
        close(pipes[1]);
        kill_and_collect(pid);
        CHECK(reads(store, at, row));
        if (round == 0) CHECK(clear(store, at));
    }
    CHECK(comes([&] { return store.stat().values == 1; }));  // of a key
    CHECK(comes([&] { return store.stat().lanes_taken == 0; }));
}

TEST_CASE("store: who keeps the books may be killed, and the next one knows what they said") {
    const TestStore world;
    const auto row = numbers(8, 500);
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    const pid_t pid = start_child([&] {  // the first one keeps them
        Store keeper = world.open();
        const auto kept = put(keeper, row, "kept");
        const auto cleared = put(keeper, row, "cleared");
        if (!kept || !cleared || !clear(keeper, *cleared)) return 1;
        const Location both[] = {*kept, *cleared};
        if (write(pipes[1], both, sizeof both) != sizeof both) return 2;
        for (;;) pause();
    });
    Location both[2];
    REQUIRE(read(pipes[0], both, sizeof both) == sizeof both);
    close(pipes[0]);
    close(pipes[1]);
    Store store = world.open();
    kill_and_collect(pid);
    CHECK(reads(store, both[0], row));
    CHECK(failed_with(look(store, both[1]), Errc::not_stored));
    const auto newer = put(store, numbers(9, 20), "kept");
    REQUIRE(newer.has_value());
    CHECK(comes([&] { return failed_with(look(store, both[0]), Errc::not_stored); }));
    CHECK(clear(store, *newer));
    CHECK(store.stat().values == 0);
}

TEST_CASE("store: a location that names nothing is refused, whatever it says") {
    const TestStore world;
    Store store = world.open();
    const auto at = put(store, numbers(1, 100));
    REQUIRE(at.has_value());
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{1}, at->number + 1, at->number - 1, at->number + 100'000,
          at->number + (std::uint64_t{1} << 51), ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
        CHECK(failed_with(look(store, {number}), Errc::not_stored));
        CHECK(clear(store, {number}));
    }
    CHECK(reads(store, *at, numbers(1, 100)));
}

TEST_CASE("store: of many that are asked for at once one that is gone is named") {
    const TestStore world({.capacity_bytes = 16 << 20, .lanes = 2});
    Store store = world.open();
    // In more lines than one look at the marks has.
    std::vector<std::vector<std::uint32_t>> contents;
    std::vector<Location> at(1000);
    contents.reserve(at.size());
    for (std::uint32_t i = 0; i < at.size(); i++) contents.push_back(numbers(i, 700 + i % 7));
    std::vector<StoreValue> values;
    values.reserve(contents.size());
    for (const auto& each : contents) values.push_back(value_of(each));
    REQUIRE(store.put(values, at, patience()).has_value());

    std::vector<StoredValue> found(at.size());
    std::vector<std::vector<std::uint32_t>> copies;
    std::vector<std::byte*> to;
    copies.reserve(contents.size());
    for (const auto& each : contents) copies.emplace_back(each.size());
    to.reserve(copies.size());
    for (auto& each : copies) to.push_back(reinterpret_cast<std::byte*>(each.data()));
    REQUIRE(store.find(at, found).has_value());
    REQUIRE(store.read(found, to).has_value());
    CHECK(copies == contents);

    const auto names = [&](const Result<void>& failed, std::size_t one) {
        return failed_with(failed, Errc::not_stored) &&
               failed.error().message.find(std::to_string(at[one].number)) != std::string::npos;
    };
    std::vector<bool> gone(at.size());
    for (const std::size_t one : {999, 998, 500, 77, 64, 63, 1, 0}) {
        CAPTURE(one);
        REQUIRE(clear(store, at[one]));
        gone[one] = true;
        CHECK(names(store.read(found, to), one));  // the first that is gone
        CHECK(names(store.find(at, found), one));
        std::vector<Location> rest;
        for (std::size_t i = 0; i < at.size(); i++) {
            if (!gone[i]) rest.push_back(at[i]);
        }
        std::vector<StoredValue> others(rest.size());
        CHECK(store.find(rest, others).has_value());
    }
    const StoredValue never;
    std::byte* const nowhere = nullptr;
    CHECK(failed_with(store.read({&never, 1}, {&nowhere, 1}), Errc::not_stored));
}

TEST_CASE("store: threads may use it at the same time") {
    const TestStore world;
    Store store = world.open();
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    threads.reserve(4);
    for (std::uint32_t t = 0; t < 4; t++) {
        threads.emplace_back([&, t] {
            const auto row = numbers(t * 1000, 700);
            for (int i = 0; i < 200; i++) {
                const auto at = put(store, row);
                if (!at || !reads(store, *at, row) || !clear(store, *at)) wrong++;
            }
        });
    }
    for (std::thread& each : threads) each.join();
    CHECK(wrong == 0);
    CHECK(store.stat().values == 0);
}

TEST_CASE("store: a forked child has to open it itself, and a ring is no store") {
    const TestStore world;
    Store store = world.open();
    CHECK(in_child([&] {
              const bool inert = failed_with(put(store, numbers(1, 3)), Errc::forked) &&
                                 failed_with(look(store, {1}), Errc::forked);
              Store own = world.open();
              return inert && put(own, numbers(1, 3)) ? 0 : 1;
          }) == 0);
    const ScratchRing ring("ring", {.lanes = 2, .lane_bytes = 1 << 16});
    CHECK(failed_with(Store::open(ring.name()), Errc::invalid_argument));
    static_cast<void>(remove_ring(ring.name() + ".clears", true));
    CHECK(failed_with(Store::open("one_lane", {.lanes = 1}), Errc::invalid_argument));
}

TEST_CASE("store: its ring is no trainer's, and a trainer's ring is no store") {
    const TestStore world;
    std::optional<Store> store = world.open();
    const auto ids = numbers(7, 500);
    const auto at = put(*store, ids);
    REQUIRE(at.has_value());
    store.reset();  // the seat is free now
    for (const std::string& ring : {world.name, world.name + ".clears"}) {
        CHECK(failed_with(Consumer::open(ring, {.attach_timeout = {}}), Errc::invalid_argument));
        CHECK(failed_with(Stash::open(ring, StashOptions{}, {.attach_timeout = {}}),
                          Errc::invalid_argument));
        CHECK(failed_with(Producer::open(ring, {.attach_timeout = {}}), Errc::invalid_argument));
    }
    CHECK(reads(world.open(), *at, ids));

    const std::string plain = world.name + ".plain";
    REQUIRE(create_ring(plain, {.lanes = 2, .lane_bytes = 1 << 16}).has_value());
    const auto refused = Store::open(plain, small);
    CHECK(failed_with(refused, Errc::invalid_argument));
    CHECK(refused.error().to_string().contains("is not a store"));
    CHECK(failed_with(stat_ring(plain + ".clears"), Errc::not_found));
    CHECK(remove_ring(plain).has_value());
}
