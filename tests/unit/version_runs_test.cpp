// Policy versions per token: as runs, their range, and their form in a record.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "rollring/trajectory.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

using Runs = std::vector<std::int64_t>;

const std::vector<std::int32_t> tokens(6);

Draft draft_with(const Runs& runs) {
    Draft draft("prompt");
    draft.add(
        {static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {6, 0, 0, 0}, 1, tokens.data()});
    draft.add({static_cast<std::uint16_t>(Std::policy_version),
               dtype_i64,
               {static_cast<std::uint32_t>(runs.size() / 2), 2, 0, 0},
               2,
               runs.data()});
    return draft;
}

void expect_range(Consumer& consumer, std::int64_t min, std::int64_t max) {
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.view.meta().policy_version_min == min);
    CHECK(record.view.meta().policy_version_max == max);
    CHECK(consumer.release(record.ref));
}

}  // namespace

TEST_CASE("version runs: one version per token becomes runs") {
    CHECK(version_runs({}).empty());
    CHECK(version_runs(Runs{3, 3, 4, 4, 5, 5}) == Runs{0, 3, 2, 4, 4, 5});
    CHECK(version_runs(Runs{-1, -1, 4, 3, 4}) == Runs{0, -1, 2, 4, 3, 3, 4, 4});
}

TEST_CASE("version runs: the range is that of the generated tokens") {
    const auto range = [](const Runs& runs, std::uint32_t n_prompt) {
        const VersionRange found = version_range(runs, 6, n_prompt);
        CHECK(found.problem.empty());
        return std::pair(found.min, found.max);
    };
    CHECK(range({}, 0) == std::pair<std::int64_t, std::int64_t>(-1, -1));
    CHECK(range({0, 3, 2, 9, 4, 5}, 0) == std::pair<std::int64_t, std::int64_t>(3, 9));
    CHECK(range({0, 3, 2, 9, 4, 5}, 2) == std::pair<std::int64_t, std::int64_t>(5, 9));
    CHECK(range({0, 3, 2, 9, 4, 5}, 4) == std::pair<std::int64_t, std::int64_t>(5, 5));
    CHECK(range({0, -1, 2, 9}, 0) == std::pair<std::int64_t, std::int64_t>(9, 9));  // unknown: -1
    CHECK(version_range(Runs{7, 1}, 6, 0).problem.contains("outside the tokens"));
    CHECK(version_range(Runs{-1, 1}, 6, 0).problem.contains("outside the tokens"));
    CHECK(version_range(Runs{2, 1, 2, 3}, 6, 0).problem.contains("not in order"));
}

TEST_CASE("version runs: a record says the range of its runs, unless the draft names it") {
    const TestRing ring;
    auto consumer = ring.consumer();
    auto producer = ring.producer();
    const Runs runs{0, 3, 2, 9, 4, 5};
    Draft draft = draft_with(runs);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
    expect_range(consumer, 3, 9);
    draft.meta.n_prompt = 4;
    REQUIRE(producer.push(draft, patience()) == Push::ok);
    expect_range(consumer, 5, 5);
    draft.meta.policy_version_min = draft.meta.policy_version_max = 7;
    REQUIRE(producer.push(draft, patience()) == Push::ok);
    expect_range(consumer, 7, 7);
    const Runs bad{2, 1, 1, 1};
    CHECK(producer.push(draft_with(bad), patience()) == Push::bad_record);
    CHECK(producer.problem().contains("'policy_version'"));
}

TEST_CASE("version runs: those that are written in place count as well") {
    const TestRing ring;
    auto consumer = ring.consumer();
    auto producer = ring.producer();
    Draft shape("prompt");
    shape.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {6, 0, 0, 0}, 1, nullptr});
    shape.add(
        {static_cast<std::uint16_t>(Std::policy_version), dtype_i64, {2, 2, 0, 0}, 2, nullptr});
    const auto commit = [&](const Runs& runs, const RolloutOutcome& outcome) {
        Reservation room;
        REQUIRE(producer.reserve(shape, patience(), room) == Push::ok);
        std::ranges::fill(room.values<std::int32_t>(Std::token_ids), 1);
        std::ranges::copy(runs, room.values<std::int64_t>(Std::policy_version).begin());
        REQUIRE(room.set(outcome));
        return room.commit();
    };
    REQUIRE(commit({0, 4, 3, 6}, {.n_prompt = 1}) == Push::ok);
    expect_range(consumer, 4, 6);
    REQUIRE(commit({0, 4, 3, 6}, {.policy_version_min = 1, .policy_version_max = 8}) == Push::ok);
    expect_range(consumer, 1, 8);
    CHECK(commit({0, 4, 0, 6}, {}) == Push::bad_record);
    CHECK(producer.problem().contains("not in order"));
    REQUIRE(commit({0, 2, 1, 2}, {}) == Push::ok);
    expect_range(consumer, 2, 2);
}
