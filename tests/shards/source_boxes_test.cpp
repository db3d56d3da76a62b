// The trainer's boxes that hold a box of an engine: how many are looked at, and which replica is
// chosen.

#include "source_boxes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "built_layout.hpp"
#include "rollring/weight_plan.hpp"

namespace rollring::shards {
namespace {

using test::BuiltLayout;

constexpr std::int64_t row_count = 38'000;
// A search in a tree of 38,000 boxes takes 16 steps down, and as many for the neighbours.
constexpr std::uint64_t steps_per_row = 40;

// A box for each row, in this order; row r is on rank r % ranks.
BuiltLayout rows_of(std::span<const std::int64_t> order, std::int64_t ranks) {
    BuiltLayout built;
    for (std::int64_t rank = 0; rank < ranks; rank++) {
        built.memory(static_cast<std::uint32_t>(rank), "w", row_count * 8);
    }
    for (const std::int64_t row : order) {
        const auto memory = static_cast<std::uint32_t>(row % ranks);
        built.box(memory, "w", {row_count, 8}, {row, 0}, {1, 8}, row * 8);
    }
    return built;
}

std::vector<std::int64_t> all_rows() {
    std::vector<std::int64_t> order(row_count);
    for (std::int64_t row = 0; row < row_count; row++) order[static_cast<std::size_t>(row)] = row;
    return order;
}

IndexBox box_of(std::vector<std::int64_t> start, std::vector<std::int64_t> length) {
    return IndexBox::of(start, length);
}

// The bytes that each rank of the trainer sends, by its number.
std::vector<std::uint64_t> sent(const BuiltLayout& trainer, const BuiltLayout& engine) {
    const auto plan = WeightPlan::make(
        trainer.layout, engine.layout,
        {.from_devices = {0, 1, 2, 3, 4, 5, 6, 7}, .to_devices = {8, 9, 10, 11, 12, 13, 14, 15}});
    REQUIRE(plan.has_value());
    std::vector<std::uint64_t> bytes(8, 0);
    for (const PlanTraffic& pair : plan->traffic()) bytes[pair.from_rank] += pair.bytes;
    return bytes;
}

bool all_equal(const std::vector<std::uint64_t>& bytes) {
    return std::ranges::adjacent_find(bytes, std::ranges::not_equal_to{}) == bytes.end();
}

}  // namespace

TEST_CASE("rows of a tensor find the boxes of their rows among many") {
    std::vector<std::int64_t> order = all_rows();
    for (const bool shuffled : {false, true}) {
        if (shuffled) std::ranges::shuffle(order, std::mt19937(1));
        const BuiltLayout trainer = rows_of(order, 8);
        SourceBoxes sources(trainer.layout, {});
        std::size_t taken = 0;
        for (std::int64_t row = 0; row < row_count; row++) {
            const auto missing = sources.cover(
                {.box = box_of({row, 2}, {1, 4}), .dtype = dtype_bf16, .rank = 0, .device = 3},
                [&](std::size_t box, const IndexBox& part) {
                    taken++;
                    if (trainer.layout.box(box).start[0] != row || part.at[1].begin != 2) taken = 0;
                });
            REQUIRE(!missing);
        }
        CHECK(taken == row_count);
        CHECK(sources.steps() < steps_per_row * row_count);
    }
}

TEST_CASE("a box of all rows is covered by many boxes, near and far") {
    std::vector<std::int64_t> order = all_rows();
    std::ranges::shuffle(order, std::mt19937(2));
    const BuiltLayout trainer = rows_of(order, 8);
    SourceBoxes sources(trainer.layout, {});
    std::set<std::int64_t> taken;
    const auto missing = sources.cover(
        {.box = box_of({0, 0}, {row_count, 8}), .dtype = dtype_bf16, .rank = 0, .device = 3},
        [&](std::size_t box, const IndexBox&) { taken.insert(trainer.layout.box(box).start[0]); });
    CHECK(!missing);
    CHECK(taken.size() == row_count);
    CHECK(sources.steps() < steps_per_row * row_count);
}

TEST_CASE("elements that no box holds are found between others") {
    BuiltLayout trainer;
    trainer.whole_box(0, "w", {9, 4}, {1, 0}, {2, 4});
    trainer.whole_box(1, "w", {9, 4}, {5, 0}, {3, 4});
    SourceBoxes sources(trainer.layout, {});
    struct Case {
        Range wanted;
        Range missing;
    };
    const Case cases[] = {{{0, 3}, {0, 1}}, {{1, 8}, {3, 5}}, {{6, 9}, {8, 9}},
                          {{3, 5}, {3, 5}}, {{2, 4}, {3, 4}}, {{8, 9}, {8, 9}}};
    for (const auto& [wanted, left] : cases) {
        const auto missing = sources.cover(
            {.box = box_of({wanted.begin, 1}, {wanted.end - wanted.begin, 2}), .dtype = dtype_bf16},
            [](std::size_t, const IndexBox&) {});
        REQUIRE(missing.has_value());
        CHECK(missing->part.at[0].begin == left.begin);
        CHECK(missing->part.at[0].end == left.end);
        CHECK(!missing->other_dtype);
    }
}

TEST_CASE("replicas of shards on other devices share the work, wherever they lie") {
    // Four shards, of which each is on two ranks.
    BuiltLayout adjacent;
    BuiltLayout apart;
    for (std::uint32_t rank = 0; rank < 8; rank++) {
        adjacent.whole_box(rank, "w", {32, 4}, {8 * std::int64_t{rank / 2}, 0}, {8, 4});
        apart.whole_box(rank, "w", {32, 4}, {8 * std::int64_t{rank % 4}, 0}, {8, 4});
    }
    BuiltLayout whole;     // each rank has the whole tensor
    BuiltLayout halves;    // each rank has half of a shard
    BuiltLayout parallel;  // four engines of two ranks: every second one has the same half
    for (std::uint32_t rank = 0; rank < 8; rank++) {
        whole.whole_box(rank, "w", {32, 4}, {0, 0}, {32, 4});
        halves.whole_box(rank, "w", {32, 4}, {4 * std::int64_t{rank}, 0}, {4, 4});
        parallel.whole_box(rank, "w", {32, 4}, {16 * std::int64_t{rank % 2}, 0}, {16, 4});
    }
    for (const BuiltLayout* trainer : {&adjacent, &apart}) {
        for (const BuiltLayout* engine : {&whole, &halves, &parallel}) {
            const std::vector<std::uint64_t> bytes = sent(*trainer, *engine);
            CAPTURE(bytes[0]);
            CHECK(all_equal(bytes));
        }
    }
}

TEST_CASE("a rank of an engine that plans alone has the copies that it has in the plan of all") {
    BuiltLayout trainer;
    BuiltLayout all;
    for (std::uint32_t rank = 0; rank < 4; rank++) {
        trainer.whole_box(rank, "w", {16, 4}, {8 * std::int64_t{rank / 2}, 0}, {8, 4});
        all.whole_box(rank, "w", {16, 4}, {0, 0}, {16, 4});
    }
    const PlanOptions options = {.from_devices = {9, 9, 9, 9}, .to_devices = {}};
    const auto plan = WeightPlan::make(trainer.layout, all.layout, options);
    REQUIRE(plan.has_value());
    std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
    for (const PlanTraffic& pair : plan->traffic()) pairs.insert({pair.from_rank, pair.to_rank});
    for (std::uint32_t rank = 0; rank < 4; rank++) {
        BuiltLayout one;
        one.whole_box(rank, "w", {16, 4}, {0, 0}, {16, 4});
        const auto alone = WeightPlan::make(trainer.layout, one.layout, options);
        REQUIRE(alone.has_value());
        REQUIRE(alone->traffic().size() == 2);
        for (const PlanTraffic& pair : alone->traffic()) {
            CHECK(pairs.contains({pair.from_rank, pair.to_rank}));
        }
    }
}

TEST_CASE("of replicas in different dtypes, one that can become the wanted one is taken") {
    for (const bool master_first : {false, true}) {
        BuiltLayout trainer;
        BuiltLayout engine;
        for (const bool master : {master_first, !master_first}) {
            trainer.dtype = master ? dtype_f32 : dtype_bf16;
            const std::uint32_t memory = trainer.memory(0, master ? "master" : "w", 32);
            trainer.box(memory, "w", {32}, {0}, {32}, 0);
        }
        for (const DType dtype : {dtype_f32, dtype_bf16}) {
            engine = {};
            engine.dtype = dtype;
            engine.whole_box(1, "w", {32}, {0}, {32});
            const auto plan = WeightPlan::make(trainer.layout, engine.layout);
            REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().to_string()));
            REQUIRE(plan->copies() == 1);
            CHECK(trainer.layout.memories()[plan->copy(0).from].dtype == dtype);
        }
        engine = {};
        engine.dtype = dtype_u8;
        engine.whole_box(1, "w", {32}, {0}, {32});
        const auto none = WeightPlan::make(trainer.layout, engine.layout);
        REQUIRE(!none);
        CHECK(none.error().code == Errc::layout_mismatch);
        CHECK(none.error().message.contains("rank 1 of the engine wants u8"));
    }
}

}  // namespace rollring::shards
