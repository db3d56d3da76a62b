// Goal: a producer's half-sent member does not block the way of another that sends it again, and
// the two never make one member together. And: a group that no acknowledgement can hold is never
// leased.
#include <doctest/doctest.h>

#include "machine_bench.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::Bench;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

// A subsequence of the first member of a pair, from one of several producers.
Arrival subsequence(std::uint16_t index, bool last, std::uint32_t lane, std::uint32_t epoch = 1) {
    Arrival arrival;
    arrival.key = {1, 0};
    arrival.subsequence_index = index;
    arrival.last_subsequence = last;
    arrival.producer_lane = lane;
    arrival.producer_epoch = epoch;
    return arrival;
}

const StashOptions plain_pairs{.group_size = 2, .batch = BatchTarget::groups(1)};

// Records of the first member of the batch, in order; they count up with the sent ones.
std::vector<std::uint32_t> first_member(Bench& bench) {
    std::vector<std::uint32_t> records;
    bench.send(1, 1);
    if (!bench.cut()) return records;
    for (const auto& one : bench.batch.subsequences_of(bench.batch.members[0]))
        records.push_back(one.record);
    return records;
}

}  // namespace

TEST_CASE("rivals: the same attempt again, after its producer's death was told") {
    Bench bench({.group_size = 2, .on_failed = OnFailed::hold, .batch = BatchTarget::groups(1)});
    bench.send(subsequence(0, false, 0));
    bench.stash.producer_gone(0, 1, bench.now_ns);
    CHECK(bench.dropped(DropReason::unfinished) == 1);
    bench.send(subsequence(0, false, 1));
    bench.send(subsequence(1, true, 1));
    CHECK(first_member(bench) == std::vector<std::uint32_t>{1, 2});
    CHECK(bench.dropped(DropReason::duplicate) == 0);
}

TEST_CASE("rivals: the same attempt again, before anybody knows of the death") {
    for (const bool told : {false, true}) {
        Bench bench(plain_pairs);
        bench.send(subsequence(0, false, 0));
        bench.send(subsequence(0, false, 0, 2));  // the successor in the same lane
        if (told) bench.stash.producer_gone(0, 1, bench.now_ns);
        CHECK(bench.dropped(DropReason::unfinished) == (told ? 1 : 0));
        bench.send(subsequence(1, true, 0, 2));
        CHECK(first_member(bench) == std::vector<std::uint32_t>{1, 2});
        CHECK(bench.dropped(DropReason::duplicate) == (told ? 0 : 1));
    }
}

TEST_CASE("rivals: what the dead one had sent may be read last") {
    Bench bench(plain_pairs);
    bench.send(subsequence(0, false, 1));
    bench.send(subsequence(0, false, 0));
    bench.send(subsequence(1, false, 0));
    bench.stash.producer_gone(0, 1, bench.now_ns);
    bench.send(subsequence(1, true, 1));
    CHECK(first_member(bench) == std::vector<std::uint32_t>{0, 3});
    CHECK(bench.dropped(DropReason::unfinished) == 2);
}

TEST_CASE("rivals: whichever is whole first is the member, and nobody's subsequences are mixed") {
    Bench bench(plain_pairs);
    for (const std::uint32_t lane : {0, 1, 2}) bench.send(subsequence(0, false, lane));
    bench.send(subsequence(1, false, 1));
    bench.send(subsequence(1, true, 2));
    bench.send(subsequence(1, true, 0));
    CHECK(bench.dropped(DropReason::duplicate) == 4);
    CHECK(first_member(bench) == std::vector<std::uint32_t>{2, 4});
    bench.stash.ack(bench.batch.id, bench.now_ns);
    CHECK(bench.stash.account().conserved());
    CHECK(bench.stash.account().shipped.records == 3);
}

TEST_CASE("rivals: they take no member's place, and all of them fail with their producers") {
    Bench bench(plain_pairs);
    for (const std::uint32_t lane : {0, 1, 2}) bench.send(subsequence(0, false, lane));
    bench.send(1, 1);
    for (const std::uint32_t lane : {1, 0, 2}) {
        CHECK(bench.stash.open_groups() == 1);
        bench.stash.producer_gone(lane, 1, bench.now_ns);
    }
    CHECK(bench.dropped(DropReason::unfinished) == 3);
    CHECK(bench.dropped(DropReason::too_few) == 1);  // one of two is not enough
}

TEST_CASE("rivals: a higher attempt replaces all of them") {
    Bench bench(plain_pairs);
    bench.send(subsequence(0, false, 0));
    bench.send(subsequence(0, false, 1));
    Arrival retry = subsequence(0, true, 2);
    retry.attempt = 1;
    bench.send(retry);
    CHECK(bench.dropped(DropReason::superseded) == 2);
    CHECK(first_member(bench) == std::vector<std::uint32_t>{2});
}

TEST_CASE("journal: a group with more records than it holds is dropped, and does not come back") {
    Bench bench(plain_pairs, 4);
    for (std::uint16_t i = 0; i < 4; i++) bench.send(subsequence(i, i == 3, 0));
    bench.send(1, 1);
    CHECK(!bench.cut());
    CHECK(bench.stash.open_groups() == 0);
    CHECK(bench.dropped(DropReason::oversized) == 5);
    bench.send(1, 1);
    CHECK(bench.dropped(DropReason::late) == 1);
}

TEST_CASE("journal: a group counts without the members that are not chosen") {
    Bench bench({.group_size = 2,
                 .extra = 2,
                 .batch = BatchTarget::groups(1),
                 .advanced = {.select = Select::uniform}},
                2);
    for (const std::uint32_t repetition : {0, 1, 2, 3}) bench.send(1, repetition);
    CHECK(bench.cut());
    CHECK(bench.dropped(DropReason::oversized) == 0);
}

TEST_CASE("journal: a trainer meets no group that it cannot acknowledge") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10, .journal_records = 4});
    auto refused = Stash::open(ring.name(), {.group_size = 5, .batch = BatchTarget::groups(1)});
    REQUIRE(!refused.has_value());
    CHECK(refused.error().message.find("--journal-records") != std::string::npos);
    auto producer = ring.producer();
    for (std::uint32_t i = 0; i < 5; i++) test::send(producer, "long", i, 5);
    for (std::uint32_t i = 0; i < 2; i++) test::send(producer, "short", i, 2);
    auto stash = test::open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.sequences()[0].view.instance_id() == "short");
    CHECK(batch.ack(0).has_value());
    CHECK(stash->account().dropped[static_cast<std::size_t>(DropReason::oversized)].records == 5);
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
}
