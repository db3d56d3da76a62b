// Goal: every sequence goes to exactly one rank (or to all, where that is asked for), by a rule
// that any process applies alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "pair_batch.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("split: each sequence is in one part, in the batch's order") {
    const PairBatch world(7);
    for (const SplitBy by :
         {SplitBy::tokens, SplitBy::group_tokens, SplitBy::sequences, SplitBy::groups}) {
        for (const std::uint32_t parts : {1U, 2U, 3U, 14U, 20U}) {
            CAPTURE(name(by));
            CAPTURE(parts);
            const auto made = split(world.batch, by, parts);
            REQUIRE(made.has_value());
            REQUIRE(made->parts.size() == parts);
            std::vector<std::uint32_t> all;
            for (std::uint32_t part = 0; part < parts; part++) {
                CHECK(std::ranges::is_sorted(made->parts[part]));
                std::uint64_t tokens = 0;
                for (const std::uint32_t i : made->parts[part]) {
                    tokens += world.batch.sequences()[i].view.n_tokens();
                    all.push_back(i);
                }
                CHECK(made->tokens[part] == tokens);
            }
            std::ranges::sort(all);
            std::vector<std::uint32_t> every(14);
            std::iota(every.begin(), every.end(), 0U);
            CHECK(all == every);
            const bool whole = by == SplitBy::groups || by == SplitBy::group_tokens;
            for (const auto& part : made->parts) {
                for (const std::uint32_t i : part) {
                    if (whole) CHECK(std::ranges::binary_search(part, i ^ 1U));
                }
            }
            CHECK(split(world.batch, by, parts)->parts == made->parts);
        }
    }
}

TEST_CASE("split: by tokens the longest goes first, and the imbalance is told") {
    const PairBatch world(3);  // 10 15, 47 52, 84 89
    const auto made = split(world.batch, SplitBy::tokens, 2);
    REQUIRE(made.has_value());
    CHECK(made->parts[0] == std::vector<std::uint32_t>{1, 2, 5});  // 89 + 47 + 15
    CHECK(made->parts[1] == std::vector<std::uint32_t>{0, 3, 4});  // 84 + 52 + 10
    CHECK(made->tokens == std::vector<std::uint64_t>{151, 146});
    CHECK(made->imbalance() == doctest::Approx(151 / 148.5));
    const auto runs = split(world.batch, SplitBy::groups, 3);
    CHECK(runs->imbalance() == doctest::Approx(173 / 99.0));
    CHECK(Split{}.imbalance() == 1);
}

TEST_CASE("split: the same to all, and to the ranks of one tensor parallel group") {
    PairBatch world(4);
    const auto made = split(world.batch, SplitBy::same, 3);
    for (const auto& part : made->parts) CHECK(part.size() == 8);
    // 8 ranks: 2 stages of 2 data ranks of 2.
    const auto part = [](std::uint32_t rank) {
        return RankShare{.rank = rank, .world = 8, .tensor = 2, .pipeline = 2}.part();
    };
    const std::vector<std::uint32_t> parts = {0, 0, 1, 1, 0, 0, 1, 1};
    for (std::uint32_t rank = 0; rank < 8; rank++) CHECK(part(rank) == parts[rank]);
    CHECK(failed_with(split(world.batch, SplitBy::tokens, 0), Errc::invalid_argument));
    CHECK(failed_with(split(world.batch, static_cast<SplitBy>(9), 1), Errc::invalid_argument));
    for (const RankShare& none :
         {RankShare{.rank = 2, .world = 2}, RankShare{.world = 0}, RankShare{.tensor = 0},
          RankShare{.world = 8, .tensor = 3}, RankShare{.world = 2, .tensor = 2, .pipeline = 2}}) {
        CHECK(failed_with(world.batch.ticket(none), Errc::invalid_argument));
    }
}
