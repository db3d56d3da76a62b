// Goal: nothing is dropped, shipped in part or waited for without a word that says of what and why.
#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::open_stash;
using rollring::test::patience;
using rollring::test::Sent;
using rollring::test::TestRing;

namespace {

const StashOptions fours{.group_size = 4, .batch = BatchTarget::groups(1)};

void deliver(Producer& producer, const Sent& record) {
    REQUIRE(rollring::test::send(producer, record) == Push::ok);
}

// Reads all there is.
void read_all(Stash& stash) {
    Batch batch;
    REQUIRE(stash.next(batch, Deadline::after_ms(20)) == NextBatch::timed_out);
}

std::vector<Event> told(Stash& stash, Event::Kind kind) {
    std::vector<Event> found;
    for (Event event; stash.next_event(event);) {
        if (event.kind == kind) found.push_back(event);
    }
    return found;
}

bool has(const std::string& text, std::string_view part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) MESSAGE(text);
    return found;
}

}  // namespace

TEST_CASE(
    "notices: the first drops of a kind are told at once, with their cause; more are in the sum") {
    const TestRing ring;
    auto one = ring.producer({.name = "one"});
    auto other = ring.producer({.name = "other"});
    auto stash = open_stash(ring, fours);
    deliver(one, {.prompt = "a/0"});
    read_all(*stash);
    for (int i = 0; i < 7; i++) deliver(other, {.prompt = "a/0"});
    read_all(*stash);
    const auto drops = told(*stash, Event::Kind::dropped);
    REQUIRE(drops.size() == 1);
    CHECK(drops[0].records == 7);
    CHECK(has(drops[0].detail,
              "'a/0' #0 of other (lane 1): two producers push the same "
              "repetition_id, the other is one (lane 0)"));
    CHECK(has(stash->dropped_since_batch(), "7 records dropped as duplicate"));
    CHECK(has(stash->waits_for(),
              "1 of 4 arrived, 0 failed; missing: members 1-3; from one (lane 0)"));
    deliver(one, {.prompt = "a/0"});
    read_all(*stash);
    // Each time-out has the cause: an adapter may have shown none of those before.
    for (int i = 0; i < 2; i++) {
        CHECK(has(stash->waits_for(),
                  "; since the last batch: 8 records dropped as duplicate, one of them: "));
    }
    for (std::uint32_t i = 1; i < 4; i++) deliver(one, {.prompt = "a/0", .repetition = i});
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(0).has_value());
    CHECK(stash->dropped_since_batch().empty());
    deliver(one, {.prompt = "a/0"});
    read_all(*stash);
    const auto late = told(*stash, Event::Kind::dropped).at(0).detail;
    CHECK(has(late, "its own visit"));
    CHECK(!has(late, "deadline"));  // it has none
    CHECK(has(stash->waits_for(), "1 record dropped as late: "));
}

TEST_CASE("notices: the cause of a late record may be that its group was dropped") {
    const TestRing ring;
    auto producer = ring.producer({.name = "one"});
    StashOptions options = fours;
    options.bad_reward = BadReward::void_group;
    auto stash = open_stash(ring, options);
    deliver(producer, {.prompt = "a", .reward = std::numeric_limits<double>::quiet_NaN()});
    read_all(*stash);
    deliver(producer, {.prompt = "a", .repetition = 1});
    read_all(*stash);
    CHECK(has(stash->dropped_since_batch(), "it had all its members or was dropped, or another"));
}

TEST_CASE("notices: a member beyond the assumed size is told of it") {
    const TestRing ring;
    auto producer = ring.producer({.name = "one"});
    auto stash = open_stash(ring, fours);
    for (std::uint32_t i = 0; i < 4; i++) {
        deliver(producer, {.prompt = "a", .repetition = i, .group_size = 0});
    }
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(0).has_value());
    deliver(producer, {.prompt = "a", .repetition = 4, .group_size = 0});
    read_all(*stash);
    CHECK(has(stash->dropped_since_batch(), "make groups of 4 (the stash's group_size"));
}

TEST_CASE("notices: a time-out names the option of an assumed group_size") {
    const TestRing ring;
    auto producer = ring.producer({.name = "one"});
    auto stash = open_stash(ring, fours);
    deliver(producer, {.prompt = "a", .group_size = 3});
    read_all(*stash);
    CHECK(!has(stash->waits_for(), "by default"));
    deliver(producer, {.prompt = "b", .group_size = 0});
    read_all(*stash);
    CHECK(has(stash->waits_for(),
              "; records without a group_size make groups of 4 (the stash's group_size, 8 by "
              "default)"));
}

TEST_CASE("notices: a late record names the deadline of a stash that has one") {
    const TestRing ring;
    auto producer = ring.producer({.name = "one"});
    StashOptions options = fours;
    options.deadline = std::chrono::hours(1);
    auto stash = open_stash(ring, options);
    for (std::uint32_t i = 0; i < 4; i++) deliver(producer, {.prompt = "a", .repetition = i});
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(0).has_value());
    deliver(producer, {.prompt = "a"});
    read_all(*stash);
    CHECK(has(told(*stash, Event::Kind::dropped).at(0).detail, "the stash's deadline had ended"));
}

TEST_CASE("notices: a producer that pushes a number twice is told so") {
    const TestRing ring;
    auto producer = ring.producer({.name = "one"});
    auto stash = open_stash(ring, fours);
    deliver(producer, {.prompt = "a"});
    deliver(producer, {.prompt = "a"});
    read_all(*stash);
    CHECK(has(stash->dropped_since_batch(), "it has pushed that repetition_id before"));
}

TEST_CASE("notices: members that disagree on the size of their group are told at once") {
    const TestRing ring;
    auto producer = ring.producer({.name = "env-3"});
    auto stash = open_stash(ring, fours);
    for (std::uint32_t i = 0; i < 3; i++) {
        deliver(producer, {.prompt = "p", .repetition = i, .group_size = i < 2 ? 8U : 6U});
    }
    read_all(*stash);
    const auto conflicts = told(*stash, Event::Kind::size_conflict);
    REQUIRE(conflicts.size() == 1);
    CHECK(has(conflicts[0].detail,
              "'p' #2 of env-3 (lane 0) says group_size 6, and the first of "
              "its group said 8"));
    CHECK(has(stash->waits_for(), "group_size 6"));
}

TEST_CASE("notices: a group that mixes numbers and none is named") {
    const TestRing ring;
    auto producer = ring.producer({.name = "env-3"});
    auto stash = open_stash(ring, fours);
    deliver(producer, {.prompt = "p"});
    const std::vector<std::int32_t> tokens{1};
    Draft draft("p");
    draft.set(Std::token_ids, tokens);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
    read_all(*stash);
    CHECK(has(stash->dropped_since_batch(),
              "dropped as mixed_numbers: 'p' of env-3 (lane 0): it has no repetition_id, and its "
              "group began with one"));
}

TEST_CASE("notices: each group that ships in part because of its deadline is told and counted") {
    const TestRing ring;
    auto producer = ring.producer({.name = "env-3"});
    auto stash = open_stash(ring, {.group_size = 4,
                                   .deadline = std::chrono::milliseconds(50),
                                   .batch = BatchTarget::groups(2)});
    for (const char* prompt : {"p", "q"}) {
        deliver(producer, {.prompt = prompt});
        deliver(producer, {.prompt = prompt, .repetition = 1});
    }
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    const auto partial = told(*stash, Event::Kind::partial);
    REQUIRE(partial.size() == 2);
    CHECK(has(partial[1].detail, "ships with 2 of 4 members (2 such groups so far): q"));
    CHECK(has(partial[1].detail, "missing: members 2-3; from env-3 (lane 0)"));
}

TEST_CASE("notices: groups that are overdue are told with what they wait for, and who has gone") {
    const TestRing ring;
    auto stash = open_stash(ring, {.group_size = 4,
                                   .deadline = std::chrono::milliseconds(20),
                                   .at_deadline = AtDeadline::hold,
                                   .batch = BatchTarget::groups(1)});
    {
        auto producer = ring.producer({.name = "env-3"});
        deliver(producer, {.prompt = "p"});
    }
    std::vector<Event> overdue;
    for (const Deadline end = patience(); overdue.empty() && !end.passed();) {
        read_all(*stash);
        overdue = told(*stash, Event::Kind::overdue);
    }
    REQUIRE(overdue.size() == 1);
    CHECK(overdue[0].records == 1);
    CHECK(has(overdue[0].detail,
              "1 of 4 arrived, 0 failed; missing: members 1-3; from env-3 (lane 0, closed)"));
}
