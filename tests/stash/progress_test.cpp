// Goal: a run does not stand still while each of its groups could fit (docs/progress.md), and a
// group that cannot fit is refused at once, by name.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "rollring/stash.hpp"
#include "support/pairs.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

std::size_t train_once(Stash& stash, std::int64_t step) {
    Batch batch;
    const NextBatch got = stash.next(batch, patience());
    std::string told;
    for (Event event; got != NextBatch::batch && stash.next_event(event);) {
        told += event.detail + '\n';
    }
    CAPTURE(told);
    REQUIRE(got == NextBatch::batch);
    const std::size_t groups = batch.groups().size();
    REQUIRE(batch.ack(step).has_value());
    return groups;
}

void look(Stash& stash) {
    Batch batch;
    REQUIRE(stash.next(batch, Deadline::now()) == NextBatch::timed_out);
}

}  // namespace

TEST_CASE("progress: a lane that is pinned to less than half gives room to a record of more") {
    const TestRing ring({.lanes = 2, .lane_bytes = mib, .spill_bytes = 32 * mib});
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    std::thread rollouts([&] {
        auto producer = ring.producer();
        CHECK(send_bytes(producer, "x", 0, 540'000, patience()) == Push::ok);
        for (int i = 0; i < 5; i++) {
            CHECK(send_bytes(producer, "small" + std::to_string(i), 0, 10'000, patience()) ==
                  Push::ok);
        }
        CHECK(send_bytes(producer, "x", 1, 560'000, patience()) == Push::ok);
        for (int i = 0; i < 5; i++) {
            CHECK(send_bytes(producer, "small" + std::to_string(i), 1, 10'000, patience()) ==
                  Push::ok);
        }
    });
    std::size_t groups = 0;
    for (std::int64_t step = 0; groups < 6; step++) groups += train_once(*stash, step);
    rollouts.join();
    CHECK(stash->account().conserved());
}

TEST_CASE("progress: a complete group is not copied, however long its records are") {
    for (const std::uint64_t bytes : {250'000, 262'500, 500'000}) {
        CAPTURE(bytes);
        const TestRing ring({.lanes = 1, .lane_bytes = mib});
        auto stash = open_stash(ring, {.group_size = 1, .batch = BatchTarget::groups(1)});
        auto producer = ring.producer();
        for (std::int64_t step = 0; step < 6; step++) {
            REQUIRE(send_bytes(producer, "g" + std::to_string(step), 0, bytes, patience(), 1) ==
                    Push::ok);
            REQUIRE(train_once(*stash, step) == 1);
        }
        CHECK(stash->copies().copied_bytes == 0);
    }
}

TEST_CASE("progress: more groups than memory holds, each producer in the same order") {
    // 24 groups of 4 x 100 KiB under way in lanes of 256 KiB: 9.6 MiB, and there are 3.
    const TestRing ring({.lanes = 4, .lane_bytes = 256 * kib, .spill_bytes = 2 * mib});
    auto stash = open_stash(ring, {.group_size = 4, .batch = BatchTarget::groups(1)});
    constexpr int groups = 48;
    std::vector<std::thread> rollouts;
    rollouts.reserve(4);
    for (std::uint32_t member = 0; member < 4; member++) {
        rollouts.emplace_back([&ring, member] {
            auto producer = ring.producer();
            for (int group = 0; group < groups; group++) {
                CHECK(send_bytes(producer, "g" + std::to_string(group), member, 100 * kib,
                                 patience(), 4) == Push::ok);
            }
        });
    }
    std::size_t shipped = 0;
    for (std::int64_t step = 0; shipped < groups; step++) shipped += train_once(*stash, step);
    for (auto& thread : rollouts) thread.join();
    CHECK(stash->account().groups_partial == 0);
    CHECK(stash->account().conserved());
}

namespace {

// Producers that each send their share of the members in the order of the groups, and wait before
// each: the next member of one lies behind a group that another could complete.
void scattered(const TestRing& ring, Stash& stash) {
    constexpr std::uint32_t producers = 8;
    constexpr std::uint32_t groups = 24;
    constexpr std::uint32_t size = 4;
    std::vector<std::thread> rollouts;
    rollouts.reserve(producers);
    for (std::uint32_t place = 0; place < producers; place++) {
        rollouts.emplace_back([&ring, place] {
            auto producer = ring.producer();
            for (std::uint32_t number = 0; number < groups * size; number++) {
                const std::uint32_t group = number / size;
                if ((number * 2654435761U >> 16) % producers != place) continue;
                CHECK(send_bytes(producer, "g" + std::to_string(group), number % size, kib,
                                 patience(), size) == Push::ok);
            }
        });
    }
    std::size_t shipped = 0;
    for (std::int64_t step = 0; shipped < groups; step++) shipped += train_once(stash, step);
    for (auto& thread : rollouts) thread.join();
    CHECK(stash.account().groups_partial == 0);
    CHECK(stash.account().conserved());
}

}  // namespace

TEST_CASE("progress: a bound on open groups does not stop producers that send in order") {
    for (const std::uint32_t bound : {1, 3}) {
        CAPTURE(bound);
        const TestRing ring({.lanes = 8, .lane_bytes = mib});
        auto stash = open_stash(
            ring, {.group_size = 4, .batch = BatchTarget::groups(1), .max_open_groups = bound});
        scattered(ring, *stash);
    }
}

TEST_CASE("progress: a bound on the bytes of open groups does not stop them either") {
    const TestRing ring({.lanes = 8, .lane_bytes = mib});
    auto stash = open_stash(ring, {.group_size = 4,
                                   .batch = BatchTarget::groups(1),
                                   .advanced = {.max_open_bytes = 4 * kib}});
    scattered(ring, *stash);
}

TEST_CASE("progress: who may choose sends what may be sent, and never stands still") {
    // One producer has all members of 16 groups at hand, of which the ring holds five at most.
    const TestRing ring({.lanes = 1, .lane_bytes = 256 * kib, .spill_bytes = mib});
    auto stash = open_stash(ring, {.group_size = 4, .batch = BatchTarget::groups(1)});
    std::thread rollouts([&] {
        auto producer = ring.producer();
        std::map<int, std::uint32_t> left;
        for (int group = 0; group < 16; group++) left[group] = 4;
        while (!left.empty()) {
            bool sent = false;
            for (auto group = left.begin(); group != left.end();) {
                const std::string prompt = "g" + std::to_string(group->first);
                if (!producer.may_send(prompt, 0, {4, 60 * kib})) {
                    ++group;
                    continue;
                }
                REQUIRE(send_bytes(producer, prompt, 4 - group->second, 60 * kib, patience(), 4) ==
                        Push::ok);
                sent = true;
                group = --group->second == 0 ? left.erase(group) : std::next(group);
            }
            if (!sent) {
                const std::string prompt = "g" + std::to_string(left.begin()->first);
                REQUIRE(producer.open_group(prompt, 0, patience(), {4, 60 * kib}) == Push::ok);
            }
        }
    });
    std::size_t shipped = 0;
    for (std::int64_t step = 0; shipped < 16; step++) shipped += train_once(*stash, step);
    rollouts.join();
    CHECK(stash->account().groups_partial == 0);
    Event event;
    while (stash->next_event(event)) CHECK(event.kind != Event::Kind::stalled);
}

TEST_CASE("progress: producers that block each other are let through while there is memory") {
    const TestRing ring({.lanes = 2, .lane_bytes = 256 * kib, .spill_bytes = 4 * mib});
    auto stash =
        open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1), .max_open_groups = 0});
    constexpr int groups = 12;
    std::vector<std::thread> rollouts;
    rollouts.reserve(2);
    for (std::uint32_t member = 0; member < 2; member++) {
        rollouts.emplace_back([&ring, member] {
            auto producer = ring.producer();
            for (int i = 0; i < groups; i++) {  // the second begins where the first ends
                const int group = member == 0 ? i : groups - 1 - i;
                CHECK(send_bytes(producer, "g" + std::to_string(group), member, 120 * kib,
                                 patience()) == Push::ok);
            }
        });
    }
    std::size_t shipped = 0;
    for (std::int64_t step = 0; shipped < groups; step++) shipped += train_once(*stash, step);
    for (auto& thread : rollouts) thread.join();
    CHECK(stash->account().groups_partial == 0);
}

TEST_CASE("progress: a trainer that only polls gets what is complete, too") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * kib, .spill_bytes = 256 * kib});
    auto stash =
        open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(8), .max_open_groups = 0});
    look(*stash);
    auto producer = ring.producer();
    std::size_t sent = 0;
    Batch batch;
    for (int turn = 0; turn < 100 && !batch.leased(); turn++) {
        const std::string prompt = "g" + std::to_string(sent / 2);
        const auto repetition = static_cast<std::uint32_t>(sent % 2);
        const Push pushed = send_bytes(producer, prompt, repetition, 50'000, Deadline::now());
        sent += pushed == Push::ok ? 1 : 0;
        CHECK(stash->next(batch, Deadline::now()) != NextBatch::closed);
    }
    REQUIRE(batch.leased());  // there is no room for eight groups
    CHECK(batch.groups().size() == sent / 2);
}

TEST_CASE("progress: where nothing can move it is told after a second, with the option") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * kib, .spill_bytes = 64 * kib});
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    std::thread rollouts([&] {
        auto producer = ring.producer();
        // Never the second member: one lane and the spill are soon full.
        for (int i = 0; i < 100; i++) {
            const Push pushed =
                send_bytes(producer, "g" + std::to_string(i), 0, 10'000, patience());
            if (pushed == Push::closed) return;
            CHECK(pushed == Push::ok);
        }
    });
    Event event{};
    while (event.kind != Event::Kind::stalled) {
        Batch batch;
        REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
        while (event.kind != Event::Kind::stalled && stash->next_event(event)) {
        }
    }
    CAPTURE(event.detail);
    CHECK(event.detail.find("no progress is possible") != std::string::npos);
    CHECK(event.detail.find("--spill-bytes") != std::string::npos);
    CHECK(event.detail.find("the oldest: (g0: open, ") != std::string::npos);
    CHECK(event.detail.find("; 1 of 2 arrived, 0 failed; missing: member 1; from ") !=
          std::string::npos);
    CHECK(event.detail.find("), (g1: open, ") != std::string::npos);
    REQUIRE(remove_ring(ring.name(), true).has_value());
    rollouts.join();
}

TEST_CASE(
    "progress: what was let in beyond the room counts with what was owed then, not afterwards") {
    const TestRing ring({.lanes = 2, .lane_bytes = 256 * kib, .spill_bytes = mib});
    auto stash = open_stash(ring, {.deadline = std::chrono::nanoseconds(100'000'000),
                                   .at_deadline = AtDeadline::drop,
                                   .batch = BatchTarget::groups(1)});
    look(*stash);
    Producer producers[2] = {ring.producer(), ring.producer()};
    CHECK(send_bytes(producers[0], "half", 0, 180 * kib, Deadline::now(), 4) == Push::ok);
    look(*stash);
    const auto open = [&](std::size_t which) {
        return producers[which].open_group("next" + std::to_string(which), 0, Deadline::now(),
                                           {3, 100 * kib});
    };
    // All wait, so that one more is to be let in; and before it comes, memory is free again.
    CHECK(open(0) == Push::timed_out);
    CHECK(open(1) == Push::timed_out);
    while (stash->account().groups_dropped == 0) {
        Batch batch;
        REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
    }
    look(*stash);
    CHECK(open(0) == Push::ok);
    CHECK(open(1) == Push::timed_out);
}

TEST_CASE(
    "progress: what one producer claims counts, also if it is more than there could ever be") {
    const TestRing ring({.lanes = 2, .lane_bytes = 256 * kib, .spill_bytes = mib});
    auto stash = open_stash(ring, {.batch = BatchTarget::groups(1)});
    look(*stash);
    auto producer = ring.producer();
    auto other = ring.producer();
    CHECK(producer.open_group("a", 0, Deadline::now(), {5, 150 * kib}) == Push::ok);
    CHECK(producer.open_group("b", 0, Deadline::now(), {5, 150 * kib}) == Push::timed_out);
    CHECK(other.open_group("c", 0, Deadline::now(), {5, 150 * kib}) == Push::timed_out);
}

TEST_CASE("progress: it is told, too, where one waits for room and others have nothing to send") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 * kib, .spill_bytes = 64 * kib});
    auto stash = open_stash(ring, {.group_size = 3, .batch = BatchTarget::groups(1)});
    look(*stash);
    const Producer idle = ring.producer();
    std::thread rollouts([&] {
        auto producer = ring.producer();
        // Short ones first, so that the groups' claims are far too small.
        for (const std::uint32_t member : {0U, 1U}) {
            for (int i = 0; i < 20; i++) {
                const Push pushed = send_bytes(producer, "g" + std::to_string(i), member,
                                               member == 0 ? 40 : 10'000, patience(), 3);
                if (pushed == Push::closed) return;
                CHECK(pushed == Push::ok);
            }
        }
    });
    Event event{};
    while (event.kind != Event::Kind::stalled) {
        Batch batch;
        REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
        while (event.kind != Event::Kind::stalled && stash->next_event(event)) {
        }
    }
    CHECK(event.detail.find("of 2 producers, 0 wait to open a group and 1 for room") !=
          std::string::npos);
    REQUIRE(remove_ring(ring.name(), true).has_value());
    rollouts.join();
}

TEST_CASE("progress: a group that can never fit is refused at once, with sizes") {
    const TestRing ring({.lanes = 1, .lane_bytes = 256 * kib, .spill_bytes = 512 * kib});
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    look(*stash);
    auto producer = ring.producer();
    CHECK(send_bytes(producer, "large", 0, 100 * kib, Deadline::now(), 16) == Push::too_large);
    CHECK(producer.problem().find("create it with --spill-bytes 4MiB or more") !=
          std::string::npos);
    CHECK(producer.open_group("declared", 0, Deadline::now(), {4, 250 * kib}) == Push::too_large);
    CHECK(send_bytes(producer, "fits", 0, 100 * kib, Deadline::now(), 2) == Push::ok);
}

TEST_CASE("progress: what is advised for a group that never fits is what a ring can have") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4 * mib, .spill_bytes = 4 * mib});
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    look(*stash);
    auto producer = ring.producer();
    const auto advice = [&](std::uint32_t members, std::uint64_t record_bytes) {
        const std::string key = std::to_string(members) + "/" + std::to_string(record_bytes);
        const GroupPlan plan{members, record_bytes};
        CHECK(producer.open_group(key, 0, Deadline::now(), plan) == Push::too_large);
        const std::string problem(producer.problem());
        return problem.substr(problem.find("for one group: "));
    };
    const auto starts = [&](const std::string& said, const std::string& bytes) {
        return said.starts_with("for one group: create it with --spill-bytes " + bytes +
                                " or more, or with --overflow; 'rollring size --producers 1 ");
    };
    CHECK(starts(advice(100, mib), "201MiB"));
    CHECK(starts(advice(40 * 1024, mib), "81GiB"));
    CHECK(starts(advice(64 * 1024, mib), "128GiB"));
    CHECK(
        advice(64 * 1024, mib + mib / 2) ==
        "for one group: even the maximum --spill-bytes, 128GiB, is too small: send smaller groups");
}

TEST_CASE("progress: what is declared is claimed, and two that do not fit together wait") {
    const TestRing ring({.lanes = 2, .lane_bytes = 256 * kib, .spill_bytes = mib});
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    look(*stash);
    Producer producers[2] = {ring.producer(), ring.producer()};
    CHECK(producers[0].open_group("a", 0, Deadline::now(), {2, 200 * kib}) == Push::ok);
    CHECK(producers[1].open_group("b", 0, Deadline::now(), {4, 200 * kib}) == Push::timed_out);
    CHECK(producers[1].problem().find("of the room for groups (") != std::string::npos);
    CHECK(send_bytes(producers[0], "a", 0, 10 * kib, Deadline::now()) == Push::ok);
    look(*stash);  // then everybody knows that it is open
    CHECK(send_bytes(producers[1], "a", 1, 10 * kib, Deadline::now()) == Push::ok);
    CHECK(train_once(*stash, 0) == 1);
    look(*stash);
    CHECK(producers[1].open_group("b", 0, Deadline::now(), {4, 200 * kib}) == Push::ok);
}

TEST_CASE("progress: what may_send() declares is owed, also after a first record that is short") {
    const TestRing ring({.lanes = 2, .lane_bytes = 256 * kib, .spill_bytes = mib});
    auto stash = open_stash(ring, {.group_size = 4, .batch = BatchTarget::groups(1)});
    look(*stash);
    Producer producers[2] = {ring.producer(), ring.producer()};
    const GroupPlan plan{4, 150 * kib};
    REQUIRE(producers[0].may_send("a", 0, plan));
    REQUIRE(send_bytes(producers[0], "a", 0, 40, Deadline::now(), 4) == Push::ok);
    look(*stash);
    CHECK_FALSE(producers[0].may_send("b", 0, plan));
    CHECK_FALSE(producers[1].may_send("b", 0, plan));
}

TEST_CASE("progress: claims count, also those that together exceed all that there is") {
    const TestRing ring({.lanes = 2, .lane_bytes = 128 * kib, .spill_bytes = 512 * kib});
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    look(*stash);
    Producer producers[2] = {ring.producer(), ring.producer()};
    CHECK(producers[0].open_group("a", 0, Deadline::now(), {4, 75 * kib}) == Push::ok);
    for (int i = 0; i < 3; i++) {  // 600 KiB of 384
        const std::string name = "b" + std::to_string(i);
        CHECK(producers[0].open_group(name, 0, Deadline::now(), {5, 75 * kib}) == Push::timed_out);
        CHECK(producers[1].open_group(name, 0, Deadline::now(), {4, 75 * kib}) == Push::timed_out);
    }
}

TEST_CASE("progress: a successor goes on in a spill whose lap was ended early") {
    const TestRing ring({.lanes = 1, .lane_bytes = 32 * kib, .spill_bytes = 512 * kib});
    const StashOptions options{
        .group_size = 2, .order = Order::freshest, .batch = BatchTarget::groups(1)};
    auto stash = open_stash(ring, options);
    look(*stash);
    auto producer = ring.producer();
    const auto send_on = [&](int group, std::uint32_t member) {
        for (int turn = 0; turn < 20; turn++) {
            const std::string prompt = "g" + std::to_string(group);
            if (send_bytes(producer, prompt, member, 10'000, Deadline::now()) == Push::ok) {
                return true;
            }
            look(*stash);
        }
        return false;
    };
    // Six records in the spill, of which the first three leave: it turns back to its start.
    for (int group = 0; group < 6; group++) REQUIRE(send_on(group, 0));
    for (int group = 0; group < 3; group++) {
        REQUIRE(send_on(group, 1));
        REQUIRE(train_once(*stash, group) == 1);
    }
    for (int group = 6; group < 10; group++) REQUIRE(send_on(group, 0));
    stash.reset();
    stash = open_stash(ring, options);
    for (int group = 10; group < 16; group++) REQUIRE(send_on(group, 0));
}

TEST_CASE("progress: before a trainer comes no more groups are let in than could be completed") {
    const TestRing ring({.lanes = 1, .lane_bytes = mib, .spill_bytes = 512 * kib});
    auto producer = ring.producer();
    CHECK(send_bytes(producer, "a", 0, 60 * kib, Deadline::now(), 4) == Push::ok);
    CHECK(send_bytes(producer, "b", 0, 60 * kib, Deadline::now(), 4) == Push::timed_out);
    CHECK(producer.problem().find("no trainer is attached") != std::string::npos);
    CHECK(send_bytes(producer, "a", 1, 60 * kib, Deadline::now(), 4) == Push::ok);
    auto consumer = ring.consumer();  // forms no groups, so nothing has to be completed
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(send_bytes(producer, "b", 0, 60 * kib, patience(), 4) == Push::ok);
}
