// Goal: a look at the stash from outside ends at once and takes no memory, whatever the board says.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/stash.hpp"
#include "rollring/stat.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::TestRing;

namespace {

void send(Producer& producer, const std::string& prompt, std::uint32_t repetition) {
    REQUIRE(rollring::test::send(producer,
                                 {.prompt = prompt, .repetition = repetition, .group_size = 4}) ==
            Push::ok);
}

StashStat look(const TestRing& ring) {
    auto stat = stat_stash(ring.name());
    REQUIRE_MESSAGE(stat.has_value(), (stat ? "" : stat.error().to_string()));
    return std::move(*stat);
}

// The pages of the reader and the board, writable, as a broken trainer has them.
struct Pages {
    Segment segment;
    Mapping reader;
    Mapping board;

    static Pages of(const TestRing& ring) {
        auto segment = Segment::attach(ring.name(), Deadline::now());
        REQUIRE(segment.has_value());
        const Geometry& geometry = segment->geometry();
        auto reader = segment->map(geometry.reader_offset(), page_bytes, true);
        auto board = segment->map(geometry.board_offset(), 4 * sizeof(GroupRow), true);
        REQUIRE(reader.has_value());
        REQUIRE(board.has_value());
        return {std::move(*segment), std::move(*reader), std::move(*board)};
    }
    [[nodiscard]] ReaderControl& control() const { return reader.at<ReaderControl>(0); }
    [[nodiscard]] StashPage& account() const { return reader.at<StashPage>(sizeof(ReaderControl)); }
    [[nodiscard]] GroupRow& row(std::uint32_t index) const {
        return board.at<GroupRow>(index * sizeof(GroupRow));
    }
};

}  // namespace

TEST_CASE("stash stat: no stash was opened, and the look takes no memory") {
    const TestRing ring;
    auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    const std::uint64_t before = map->segment().resident_bytes();
    CHECK_FALSE(look(ring).used);
    // The words claim that there is a stash, with more groups than rows.
    const auto reader = map->segment().map(map->geometry().reader_offset(), page_bytes, true);
    REQUIRE(reader.has_value());
    reader->at<StashPage>(sizeof(ReaderControl)).sequence.store(2);
    reader->at<ReaderControl>(0).open_groups.store(~std::uint64_t{0});
    const StashStat stat = look(ring);
    CHECK(stat.used);
    CHECK_FALSE(stat.open);
    CHECK(stat.groups.empty());
    CHECK(map->segment().resident_bytes() == before);
    CHECK(stat_stash("no-such-ring").error().code == Errc::not_found);
}

TEST_CASE("stash stat: the latest batch has a mean reward and its tokens") {
    const TestRing ring;
    auto producer = ring.producer();
    auto opened = Stash::open(ring.name(), {.batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    const auto latest_of = [&](const std::string& prompt, std::vector<double> rewards) {
        const std::vector<std::int32_t> tokens(5);
        for (std::uint32_t i = 0; i < 3; i++) {
            Draft draft(prompt);
            draft.meta = {.repetition_id = i, .group_size = 3};
            if (i < rewards.size()) draft.meta.reward = rewards[i];
            draft.set(Std::token_ids, std::span(tokens).first(3 + i % 2));
            REQUIRE(producer.push(draft, Deadline::after_ms(10'000)) == Push::ok);
        }
        Batch batch;
        REQUIRE((*opened)->next(batch, Deadline::after_ms(10'000)) == NextBatch::batch);
        const StashStat stat = look(ring);  // while it is trained on
        CHECK(stat.account_whole);
        REQUIRE(batch.ack(0));
        CHECK(look(ring).latest_batch.tokens == stat.latest_batch.tokens);
        return stat.latest_batch;
    };
    CHECK(look(ring).latest_batch.sequences == 0);
    LatestBatch latest = latest_of("a", {0, 0.5, 1});
    CHECK(latest.sequences == 3);
    CHECK(latest.tokens == 10);
    CHECK(latest.rewarded == 3);
    CHECK(latest.mean_reward == 0.5);
    latest = latest_of("b", {-2});
    CHECK(latest.rewarded == 1);
    CHECK(latest.mean_reward == -2);
    latest = latest_of("c", {});
    CHECK(latest.sequences == 3);
    CHECK(latest.rewarded == 0);
}

TEST_CASE("stash stat: shows what is open, and leaves out what never holds still") {
    const TestRing ring;
    auto producer = ring.producer({.name = "worker"});
    for (int prompt = 0; prompt < 3; prompt++) send(producer, "p" + std::to_string(prompt), 1);
    const std::string cut = std::string(38, 'x') + "\xe2\x82\xac";  // the row ends within the sign
    send(producer, cut, 0);
    auto opened = Stash::open(ring.name(), {.batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    Batch batch;
    // Twice: records that are read in the last turn of a call are shown by the next one.
    for (int i = 0; i < 2; i++) {
        REQUIRE((*opened)->next(batch, Deadline::now()) == NextBatch::timed_out);
    }
    StashStat stat = look(ring);
    CHECK(stat.open);
    CHECK(stat.account_whole);
    CHECK(stat.account.held.records == 4);
    CHECK(stat.account.conserved());
    REQUIRE(stat.groups.size() == 4);
    CHECK(stat.groups[0].missing == std::vector<std::uint32_t>{0, 2, 3});
    CHECK(stat.groups[0].producers == std::vector<std::string>{"worker (lane 0)"});
    CHECK(stat.groups[3].instance_id == std::string(38, 'x'));

    const Pages pages = Pages::of(ring);
    pages.row(1).sequence.fetch_add(1);  // as if its writer had died there
    pages.account().sequence.fetch_add(1);
    pages.row(2).state.store(77);
    pages.row(2).size.store(~0U);
    pages.row(2).missing.store(~std::uint64_t{0});
    pages.row(2).lanes.store(~std::uint64_t{0});
    stat = look(ring);
    CHECK_FALSE(stat.account_whole);
    CHECK(stat.rows_unread == 1);
    REQUIRE(stat.groups.size() == 3);
    CHECK(stat.groups[1].state == GroupState::unknown);
    CHECK(stat.groups[1].missing.size() == 64);
    CHECK(stat.groups[1].producers.size() == 1);
}

TEST_CASE("stash stat: a trainer says of its groups what is seen of them from outside") {
    const TestRing ring;
    auto first = ring.producer({.name = "first"});
    auto second = ring.producer({.name = "second"});
    send(first, "p0", 1);
    send(second, "p0", 3);
    send(second, "p1\n", 0);
    auto opened = Stash::open(ring.name(), {.batch = BatchTarget::groups(1)});
    REQUIRE(opened.has_value());
    Batch batch;
    for (int i = 0; i < 2; i++) {
        REQUIRE((*opened)->next(batch, Deadline::now()) == NextBatch::timed_out);
    }
    std::vector<GroupStat> inside = (*opened)->explain(10);
    StashStat stat = look(ring);
    REQUIRE(inside.size() == 2);
    REQUIRE(stat.groups.size() == 2);
    for (std::size_t i = 0; i < 2; i++) {
        GroupStat& in = inside[i];
        GroupStat& out = stat.groups[i];
        CHECK(in.age_ns >= 0);
        CHECK(in.unchanged_ns >= 0);
        CHECK(in.age_ns <= out.age_ns);
        CHECK(in.unchanged_ns <= out.unchanged_ns);
        in.age_ns = out.age_ns = 1'500'000'000;
        in.unchanged_ns = out.unchanged_ns;
        for_each_field(in, [&](const auto& field, const auto& value) {
            INFO(field.name);
            CHECK(value == out.*field.member);
        });
        CHECK(in.to_string() == out.to_string());
    }
    CHECK(inside[0].to_string() ==
          "p0: open, 1.5 s old; 2 of 4 arrived, 0 failed; missing: members 0, 2; from first (lane "
          "0), second "
          "(lane 1)");
    CHECK(inside[1].instance_id == "p1?");
    CHECK(inside[1].missing_text() == "1-3");
    CHECK((*opened)->explain(1).size() == 1);
}

TEST_CASE("stash stat: of what is missing a line names the first, and a report all") {
    GroupStat group{};
    CHECK(group.missing_text() == "none");
    CHECK(group.producers_text().empty());
    group.state = GroupState::leased;
    group.size = group.complete = 4;
    CHECK(group.to_string() ==
          "a group without a name: leased, 0.0 s old; 4 of 4 arrived, 0 failed");
    for (std::uint32_t repetition = 0; repetition < 20; repetition += 2) {
        group.missing.push_back(repetition);
    }
    CHECK(group.missing_text() == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18");
    CHECK(group.to_string().ends_with("; missing: members 0, 2, 4, 6, 8, 10, 12, 14, ..."));
}
