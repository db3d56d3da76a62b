// Goal: while the stash stands still, a post is answered when its time is over, and no part of it
// was sent: the environment may post the group again.

#include "integrations/atropos/lane_pool.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "rollring/stash.hpp"
#include "support/test_ring.hpp"

namespace rollring::cli {
namespace {

using test::TestRing;

constexpr std::uint32_t members = 2;
constexpr std::uint32_t open_most = 3;
// A sender that is not told in time hangs up after this number of questions: the test then fails
// instead of hanging.
constexpr int patient_most = 100;

LaneSend post(LanePool& lanes, const std::string& prompt) {
    const std::vector<std::int32_t> tokens(16, 7);
    std::vector<Draft> group;
    for (std::uint32_t i = 0; i < members; i++) {
        Draft& draft = group.emplace_back(prompt);
        draft.meta.repetition_id = i;
        draft.meta.group_size = members;
        draft.set(Std::token_ids, tokens);
    }
    int asked = 0;
    std::string problem;
    const auto hangs_up = [&asked] { return ++asked > patient_most; };
    const LaneSend sent = lanes.send(group, 0, hangs_up, problem);
    CHECK(problem.empty());
    return sent;
}

std::uint64_t records_in(const TestRing& ring) {
    const auto stat = stat_ring(ring.name());
    REQUIRE(stat.has_value());
    std::uint64_t records = 0;
    for (const LaneStat& lane : stat->lanes) records += lane.committed_records;
    return records;
}

// The stash may be of another process, which is stopped, or trains: the server cannot let it work.
TEST_CASE("a post that waits for a credit is answered when its time is over") {
    const TestRing ring({.lanes = 4, .lane_bytes = 1 << 20});
    auto stash =
        Stash::open(ring.name(), {.batch = BatchTarget::groups(1), .max_open_groups = open_most});
    REQUIRE(stash.has_value());
    auto lanes = LanePool::open(ring.name());
    REQUIRE(lanes.has_value());
    for (std::uint32_t i = 0; i < open_most; i++) {
        REQUIRE(post(**lanes, "prompt" + std::to_string(i)) == LaneSend::ok);
    }
    // The lane has room for hundreds of them: only the credit is missing.
    CHECK(post(**lanes, "late") == LaneSend::no_room);
    CHECK(records_in(ring) == members * open_most);

    Batch batch;
    REQUIRE((*stash)->next(batch, test::patience()) == NextBatch::batch);
    REQUIRE(batch.ack((*stash)->last_acked_step() + 1).has_value());
    CHECK(post(**lanes, "late") == LaneSend::ok);
    CHECK(records_in(ring) == members * (open_most + 1));
}

}  // namespace
}  // namespace rollring::cli
