// Goal: what producers ask (is this group open?) and what a restart reads (which are over?) follows
// the groups, also where an index is taken anew unseen or lies beyond the rows.
#include <doctest/doctest.h>

#include "group_board.hpp"
#include "rollring/stat.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

Group group_of(std::uint64_t number, GroupState state) {
    Group group;
    group.key = {number * 0x9e3779b97f4a7c15, number};
    group.state = state;
    group.size = 2;
    return group;
}

class BoardBench {
  public:
    BoardBench()
        : ring_({.lanes = 1, .lane_bytes = 4096, .group_rows = 4}),
          map_(RingMap::attach(ring_.name(), patience())) {
        REQUIRE(map_.has_value());
        auto opened = GroupBoard::open(*map_, control_);
        REQUIRE(opened.has_value());
        board_.emplace(std::move(*opened));
        const Geometry& geometry = map_->geometry();
        auto keys = map_->segment().map(geometry.keys_offset(), geometry.key_count() * 8, false);
        REQUIRE(keys.has_value());
        keys_ = std::move(*keys);
    }
    void show(std::uint32_t index, std::uint64_t number, GroupState state) {
        board_->show(index, group_of(number, state), 1);
    }
    bool is_open(std::uint64_t number) {
        KeyTable table(&keys_.at<std::atomic<std::uint64_t>>(0), map_->geometry().key_count());
        return table.holds(group_of(number, GroupState::open).key);
    }
    std::vector<std::uint64_t> tombstones() const {
        std::vector<std::uint64_t> numbers;
        const auto known = board_->tombstones(monotonic_ns());
        numbers.reserve(known.size());
        for (const KnownTombstone& tombstone : known) numbers.push_back(tombstone.key.high);
        return numbers;
    }

  private:
    TestRing ring_;
    Result<RingMap> map_;
    ReaderControl control_{};
    std::optional<GroupBoard> board_;
    Mapping keys_;
};

}  // namespace

TEST_CASE("board: a group is found open that took the index of one whose end was not shown") {
    BoardBench bench;
    bench.show(0, 1, GroupState::open);
    bench.show(0, 2, GroupState::open);
    CHECK(bench.is_open(2));
    CHECK(!bench.is_open(1));
    CHECK(bench.tombstones() == std::vector<std::uint64_t>{1});
    bench.show(0, 2, GroupState::free);
    CHECK(!bench.is_open(2));
    CHECK(bench.tombstones() == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("board: groups beyond the rows are found open, too") {
    BoardBench bench;
    for (std::uint32_t index = 0; index < 6; index++)
        bench.show(index, index + 1, GroupState::open);
    for (std::uint64_t number = 1; number <= 6; number++) CHECK(bench.is_open(number));
    bench.show(5, 6, GroupState::free);
    CHECK(!bench.is_open(6));
}

TEST_CASE("board: a group of which every record so far was dropped has its name") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * 1024});
    const auto segment = Segment::attach(ring.name(), patience());
    REQUIRE(segment.has_value());
    const auto page = segment->map(segment->geometry().policy_offset(), page_bytes, true);
    REQUIRE(page.has_value());
    store_release(page->at<PolicyPage>(0).version, std::int64_t{5});
    auto producer = ring.producer();
    const std::vector<std::int32_t> tokens(10, 1);
    Draft draft("stale");
    draft.meta.policy_version_min = draft.meta.policy_version_max = 1;
    draft.set(Std::token_ids, tokens);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
    const auto stash = rollring::test::open_stash(
        ring, {.group_size = 2, .max_lag = 0, .batch = BatchTarget::groups(1)});
    Batch batch;
    while (stash->open_groups() < 1) {
        REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
    }
    CHECK(stash->account().dropped[static_cast<std::size_t>(DropReason::stale)].records == 1);
    const auto stat = stat_stash(ring.name());
    REQUIRE(stat.has_value());
    REQUIRE(stat->groups.size() == 1);
    CHECK(stat->groups[0].instance_id == "stale");
}
