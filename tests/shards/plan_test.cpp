// Plans of the layouts that trainers and engines have, and their errors.

#include "rollring/weight_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "built_layout.hpp"

namespace rollring::test {

TEST_CASE("shards of rows to rows on the same devices move nothing") {
    BuiltLayout trainer;
    BuiltLayout engine;
    for (std::uint32_t rank = 0; rank < 4; rank++) {
        const std::int64_t at = rank;
        trainer.whole_box(rank, "up", {64, 16}, {16 * at, 0}, {16, 16});
        engine.whole_box(rank, "up", {64, 16}, {16 * at, 0}, {16, 16});
        trainer.whole_box(rank, "down", {16, 64}, {4 * at, 0}, {4, 64});
        engine.whole_box(rank, "down", {16, 64}, {0, 16 * at}, {16, 16});
    }
    const auto plan = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(plan.has_value());
    CHECK(plan->local_bytes() == 2 * (64 * 16 + 64 * 16 / 4));
    CHECK(plan->remote_bytes() == 2 * 64 * 16 * 3 / 4);
    REQUIRE(plan->tensors().size() == 2);
    CHECK(plan->tensors()[0].remote_bytes == 0);
    CHECK(plan->tensors()[1].remote_bytes == 2 * 64 * 16 * 3 / 4);
    CHECK(plan->traffic().size() == 16);
    CHECK(plan->traffic()[1].from_rank == 0);
    CHECK(plan->traffic()[1].to_rank == 1);
    CHECK(plan->traffic()[1].bytes == 2 * 4 * 16);
    CHECK(!plan->traffic()[1].local);
    CHECK(plan->padding_elements() == 0);

    const auto apart = WeightPlan::make(trainer.layout, engine.layout,
                                        {.from_devices = {0, 1, 2, 3}, .to_devices = {4, 5, 6, 7}});
    REQUIRE(apart.has_value());
    CHECK(apart->local_bytes() == 0);
}

TEST_CASE("experts of a stacked tensor that an engine stacks as well are one copy") {
    constexpr std::int64_t experts = 12;
    BuiltLayout trainer;
    BuiltLayout engine;
    const std::uint32_t stacked = trainer.memory(0, "w13", experts * 2 * 8 * 4);
    const std::uint32_t w13 = engine.memory(0, "w13", experts * 2 * 2 * 4);
    for (std::int64_t expert = 0; expert < experts; expert++) {
        for (std::int64_t half = 0; half < 2; half++) {
            const std::string name = (half == 0 ? "gate." : "up.") + std::to_string(expert);
            const std::int64_t at = expert * 2 + half;
            trainer.box(stacked, name, {8, 4}, {0, 0}, {8, 4}, at * 32);
            engine.box(w13, name, {8, 4}, {2, 0}, {2, 4}, at * 8);  // rank 1 of 4
        }
    }
    const auto plan = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(plan.has_value());
    REQUIRE(plan->copies() == 1);
    const PlanCopy copy = plan->copy(0);
    CHECK(copy.from_offset == 8);
    CHECK(copy.to_offset == 0);
    CHECK(std::ranges::equal(copy.extents, std::vector<std::int64_t>{24, 8}));
    CHECK(std::ranges::equal(copy.from_strides, std::vector<std::int64_t>{32, 1}));
    CHECK(std::ranges::equal(copy.to_strides, std::vector<std::int64_t>{8, 1}));
}

TEST_CASE("replicas on other devices are used in turn, and one on the same device first") {
    BuiltLayout trainer;
    BuiltLayout engine;
    for (std::uint32_t rank = 0; rank < 4; rank++) {
        trainer.whole_box(rank, "norm", {32}, {0}, {32});
        engine.whole_box(rank, "norm", {32}, {0}, {32});
    }
    const auto near = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(near.has_value());
    CHECK(near->remote_bytes() == 0);
    const auto far = WeightPlan::make(trainer.layout, engine.layout,
                                      {.from_devices = {0, 1, 2, 3}, .to_devices = {4, 5, 6, 7}});
    REQUIRE(far.has_value());
    REQUIRE(far->traffic().size() == 4);
    for (const PlanTraffic& pair : far->traffic()) CHECK(pair.from_rank == pair.to_rank);
}

TEST_CASE("padding rows of a vocabulary stay as they are") {
    BuiltLayout trainer;
    BuiltLayout engine;
    trainer.whole_box(0, "embed", {13, 8}, {0, 0}, {13, 8});
    const std::uint32_t memory = engine.memory(0, "embed", 16 * 8);
    engine.box(memory, "embed", {13, 8}, {0, 0}, {13, 8}, 0);
    const auto plan = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(plan.has_value());
    CHECK(plan->padding_elements() == 3 * 8);
}

TEST_CASE("tied tensors of an engine are one, if the trainer says so") {
    BuiltLayout trainer;
    BuiltLayout engine;
    trainer.whole_box(0, "embed", {8, 4}, {0, 0}, {8, 4});
    trainer.whole_box(1, "head", {8, 4}, {0, 0}, {8, 4});
    const std::uint32_t memory = engine.memory(0, "embed", 32);
    engine.box(memory, "embed", {8, 4}, {0, 0}, {8, 4}, 0);
    engine.box(memory, "head", {8, 4}, {0, 0}, {8, 4}, 0);
    const auto twice = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(!twice);
    CHECK(twice.error().code == Errc::layout_mismatch);
    CHECK(twice.error().message ==
          "tensor 'head': the engine's box rank 0, 'embed': [0:8, 0:4] shares memory with box "
          "rank 0, 'embed': [0:8, 0:4] of tensor 'embed'");

    BuiltLayout tied;
    tied.whole_box(0, "embed", {8, 4}, {0, 0}, {4, 4});
    tied.tie("head", "embed");
    tied.whole_box(1, "head", {8, 4}, {4, 0}, {4, 4});  // the last rank of a pipeline has the rest
    const auto once = WeightPlan::make(tied.layout, engine.layout);
    REQUIRE(once.has_value());
    CHECK(once->local_bytes() + once->remote_bytes() == 2 * 32);

    BuiltLayout shares;  // says that the two are one, and has boxes of the first one only
    shares.whole_box(0, "embed", {8, 4}, {0, 0}, {8, 4});
    REQUIRE(shares.layout.add_tensor("head", BuiltLayout::Numbers{8, 4}, 0).has_value());
    CHECK(WeightPlan::make(tied.layout, shares.layout).has_value());
    const auto untied = WeightPlan::make(trainer.layout, shares.layout);
    REQUIRE(!untied);
    CHECK(untied.error().code == Errc::layout_mismatch);
    CHECK(untied.error().message ==
          "tensor 'head': the engine ties it to 'embed', the trainer has values of its own for it");
}

TEST_CASE("interleaved boxes of vast tensors are compared, or refused") {
    constexpr std::int64_t half = std::int64_t{1} << 39;
    BuiltLayout engine;
    const std::uint32_t memory = engine.memory(0, "m", 2 * half);
    engine.box(memory, "a", {half}, {0}, {half}, 0, {2});
    engine.box(memory, "b", {half / 2}, {0}, {half / 2}, 1, {4});
    BuiltLayout trainer;
    trainer.whole_box(0, "a", {half}, {0}, {half});
    trainer.whole_box(0, "b", {half / 2}, {0}, {half / 2});
    const auto plan = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().to_string()));
    CHECK(plan->padding_elements() == half / 2);

    const BuiltLayout::Numbers shape = {1 << 14, 1 << 13, 2};
    BuiltLayout crossing;
    const std::uint32_t crossed = crossing.memory(0, "m", 2 * half);
    crossing.box(crossed, "a", shape, {0, 0, 0}, shape, 0, {1 << 26, 1 << 13, 2});
    crossing.box(crossed, "b", shape, {0, 0, 0}, shape, 1, {7 << 23, 3 << 11, 2});
    BuiltLayout whole;
    whole.whole_box(0, "a", shape, {0, 0, 0}, shape);
    whole.whole_box(0, "b", shape, {0, 0, 0}, shape);
    const auto vague = WeightPlan::make(whole.layout, crossing.layout);
    REQUIRE(!vague);
    CHECK(vague.error().code == Errc::unsupported);
    CHECK(
        vague.error().message ==
        "tensor 'b': the engine's box rank 0, 'm': [0:16384, 0:8192, 0:2] lies too interleaved to "
        "be checked between the rows of box rank 0, 'm': [0:16384, 0:8192, 0:2] of tensor 'a'");
}

TEST_CASE("an error names the tensor and the box") {
    BuiltLayout trainer;
    trainer.whole_box(0, "w", {8, 4}, {0, 0}, {4, 4});
    trainer.whole_box(1, "w", {8, 4}, {5, 0}, {3, 4});
    BuiltLayout engine;
    engine.whole_box(3, "w", {8, 4}, {2, 1}, {6, 3});
    const auto plan = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(!plan);
    CHECK(plan.error().code == Errc::layout_mismatch);
    CHECK(plan.error().message ==
          "tensor 'w': no rank of the trainer has its elements [4:5, 1:4], which are in the "
          "engine's box rank 3, 'w': [2:8, 1:4]");

    BuiltLayout other;
    other.whole_box(0, "v", {8, 4}, {0, 0}, {8, 4});
    CHECK(WeightPlan::make(trainer.layout, other.layout).error().message ==
          "tensor 'v': the trainer does not have it");
    BuiltLayout shaped;
    shaped.whole_box(0, "w", {4, 8}, {0, 0}, {4, 8});
    CHECK(WeightPlan::make(trainer.layout, shaped.layout).error().message ==
          "tensor 'w': the trainer's has another shape");

    BuiltLayout crossing;
    const std::uint32_t memory = crossing.memory(0, "w", 64);
    crossing.box(memory, "w", {8, 4}, {0, 0}, {2, 4}, 0, {2, 1});
    const auto self = WeightPlan::make(trainer.layout, crossing.layout);
    CHECK(self.error().code == Errc::unsupported);
    CHECK(self.error().message ==
          "tensor 'w': elements of the engine's box rank 0, 'w': [0:2, 0:4] share memory, or their "
          "strides cross");

    const auto devices = WeightPlan::make(trainer.layout, engine.layout,
                                          {.from_devices = {0, 1}, .to_devices = {0}});
    CHECK(devices.error().code == Errc::invalid_argument);
}

TEST_CASE("a plan casts masters of f32, and nothing else") {
    BuiltLayout trainer;
    trainer.dtype = dtype_f32;
    trainer.whole_box(0, "w", {8}, {0}, {8});
    BuiltLayout engine;
    engine.whole_box(0, "w", {8}, {0}, {8});
    const auto plan = WeightPlan::make(trainer.layout, engine.layout);
    REQUIRE(plan.has_value());
    CHECK(plan->local_bytes() == 16);
    const auto back = WeightPlan::make(engine.layout, trainer.layout);
    REQUIRE(!back);
    CHECK(back.error().message ==
          "tensor 'w': rank 0 of the trainer has it as bf16, rank 0 of the engine wants f32");
}

}  // namespace rollring::test
