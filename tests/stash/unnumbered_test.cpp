// Goal: members without a number are members of their own: none is taken for another.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "machine_bench.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::Bench;
using rollring::test::open_stash;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

Arrival unnumbered(std::uint64_t prompt, std::uint32_t lane = 0) {
    Arrival arrival;
    arrival.key = {prompt, 0};
    arrival.numbered = false;
    arrival.producer_lane = lane;
    return arrival;
}

StashOptions groups_of(std::uint32_t size) {
    return {.group_size = size, .batch = BatchTarget::groups(1)};
}

}  // namespace

TEST_CASE("unnumbered: eight members of one group make it whole, from one producer or from many") {
    for (const std::uint32_t lanes : {1, 3}) {
        Bench bench(groups_of(8));
        for (std::uint32_t i = 0; i < 8; i++) bench.send(unnumbered(1, i % lanes));
        REQUIRE(bench.cut());
        CHECK(bench.batch.groups[0].member_count == 8);
        CHECK(bench.stash.account().dropped_total() == Amount{});
        bench.stash.ack(bench.batch.id, bench.now_ns);
        bench.send(unnumbered(1));
        CHECK(bench.dropped(DropReason::late) == 1);
    }
}

TEST_CASE("unnumbered: a group that mixes both is held to what its first member does") {
    Bench bench(groups_of(2));
    bench.send(unnumbered(1));
    bench.send(1, 0);
    CHECK(bench.dropped(DropReason::mixed_numbers) == 1);
    bench.send(2, 0);
    bench.send(unnumbered(2));
    CHECK(bench.dropped(DropReason::mixed_numbers) == 2);
    bench.send(unnumbered(1));
    bench.send(2, 1);
    REQUIRE(bench.cut());
    bench.stash.ack(bench.batch.id, bench.now_ns);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].member_count == 2);
}

TEST_CASE("unnumbered: members beyond the size are surplus, and the end of a producer ends none") {
    Bench bench(groups_of(3));
    bench.send(unnumbered(1, 4));
    bench.stash.producer_gone(4, 0, bench.now_ns);
    for (int i = 0; i < 3; i++) bench.send(unnumbered(1));
    CHECK(bench.dropped(DropReason::surplus) == 1);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].member_count == 3);
}

TEST_CASE("unnumbered: a member of several records is refused where it is pushed") {
    const TestRing ring;
    auto producer = ring.producer();
    const std::vector<std::int32_t> tokens{1, 2, 3};
    for (const bool first : {true, false}) {
        Draft draft("p");
        draft.meta.subsequence_index = first ? 0 : 1;
        draft.meta.last_subsequence = !first;
        draft.set(Std::token_ids, tokens);
        CHECK(producer.push(draft, patience()) == Push::bad_record);
        CHECK(producer.problem().find("needs a repetition_id") != std::string::npos);
        draft.meta.repetition_id = 0;
        CHECK(producer.push(draft, patience()) == Push::ok);
    }
}

TEST_CASE("unnumbered: from a draft to a batch, where members are counted as they came") {
    const TestRing ring;
    auto producer = ring.producer();
    auto stash = open_stash(ring, groups_of(4));
    const std::vector<std::int32_t> tokens{1, 2, 3};
    for (int i = 0; i < 4; i++) {
        Draft draft("p");
        draft.meta.group_size = 4;
        draft.set(Std::token_ids, tokens);
        REQUIRE(producer.push(draft, patience()) == Push::ok);
    }
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.sequences().size() == 4);
    for (std::uint32_t i = 0; i < 4; i++) {
        CHECK(!batch.sequences()[i].view.meta().repetition_id.has_value());
        CHECK(batch.repetition_ids()[i] == i);
    }
}
