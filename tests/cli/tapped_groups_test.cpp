// Goal: groups that are recorded from outside have the members that a stash would have shipped.
#include "cli/commands/tapped_groups.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::cli;
using namespace rollring::test;

namespace {

// Records of one prompt in a ring, each of which goes to the groups.
class World {
  public:
    World() {
        auto tap = Tap::attach(ring_.name());
        REQUIRE(tap.has_value());
        tap_.emplace(std::move(*tap));
    }
    // The number of records that the group has once it is complete; -1: it is not.
    int send(Producer& producer, Meta meta, std::int32_t token = 1) {
        const std::vector<std::int32_t> ids(3, token);
        Draft draft("prompt");
        draft.meta = meta;
        draft.meta.group_size = 2;
        draft.set(Std::token_ids, ids);
        REQUIRE(producer.push(draft, patience()) == Push::ok);
        TapRecord record;
        REQUIRE(tap_->poll(record) == TapPoll::record);
        const auto group = groups.add(record);
        REQUIRE(tap_->poll(record) == TapPoll::empty);
        if (!group) return -1;
        tokens.clear();
        for (const TrajectoryView* one : group->records) tokens.push_back(one->token_ids()[0]);
        return static_cast<int>(group->records.size());
    }
    [[nodiscard]] Producer producer() const { return ring_.producer(); }

    TappedGroups groups{8, 1 << 20};
    std::vector<std::int32_t> tokens;  // the first of each record of the last group

  private:
    const TestRing ring_;
    std::optional<Tap> tap_;
};

}  // namespace

TEST_CASE("record: members are of one attempt, and of one sender") {
    World world;
    Producer one = world.producer();
    Producer two = world.producer();
    const Meta first{.repetition_id = 0, .last_subsequence = false};
    Meta last = first;
    last.subsequence_index = 1;
    last.last_subsequence = true;
    CHECK(world.send(one, first, 1) == -1);
    CHECK(world.send(two, last, 2) == -1);  // of another sender: its first part is missing
    CHECK(world.send(one, {.repetition_id = 1}, 3) == -1);
    CHECK(world.send(one, {.repetition_id = 0, .attempt = 1}, 4) == 2);
    CHECK(world.tokens == std::vector<std::int32_t>{4, 3});
    CHECK(world.send(two, {.repetition_id = 2}, 5) == -1);  // too late
    CHECK(world.groups.open() == 0);
}

TEST_CASE("record: failed members are final and left out, whatever they carry") {
    World world;
    Producer producer = world.producer();
    CHECK(world.send(producer, {.repetition_id = 5, .last_subsequence = false}) == -1);
    CHECK(world.send(producer, {.repetition_id = 0,
                                .last_subsequence = false,
                                .status = Status::failed,
                                .reward = -50.0}) == -1);
    CHECK(world.send(producer, {.repetition_id = 1, .reward = 1.0}, 7) == 1);
    CHECK(world.tokens == std::vector<std::int32_t>{7});
}

TEST_CASE("record: a reward that is not a number fails its member") {
    World world;
    Producer producer = world.producer();
    const double bad = std::numeric_limits<double>::quiet_NaN();
    CHECK(world.send(producer, {.repetition_id = 0, .reward = bad}) == -1);
    CHECK(world.send(producer, {.repetition_id = 0, .attempt = 1, .reward = 1.0}, 8) == -1);
    CHECK(world.send(producer, {.repetition_id = 1, .reward = 1.0}, 9) == 2);
    CHECK(world.tokens == std::vector<std::int32_t>{8, 9});
}

TEST_CASE("record: records without a number are members of their own, and memory is bounded") {
    World world;
    Producer producer = world.producer();
    CHECK(world.send(producer, {}, 1) == -1);
    CHECK(world.send(producer, {}, 2) == 2);
    world.groups = TappedGroups(2, 1);
    CHECK(world.send(producer, {.visit = 1, .repetition_id = 0}) == -1);
    CHECK(world.send(producer, {.visit = 2, .repetition_id = 0}) == -1);
    CHECK(world.groups.given_up() == 1);
    CHECK(world.send(producer, {.visit = 1, .repetition_id = 1}) == -1);
    CHECK(world.send(producer, {.visit = 2, .repetition_id = 1}) == 2);
}
