// Goal: advantages follow the formula, rounding is not a signal, and nothing makes them NaN.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "machine_bench.hpp"
#include "rollring/stash.hpp"

using namespace rollring;
using rollring::test::Bench;

namespace {

std::vector<double> advantages_of(const std::vector<double>& rewards,
                                  const AdvantageFormula& formula = {}) {
    std::vector<double> made(rewards.size(), 9.0);
    group_advantages(rewards, formula, made);
    return made;
}

// Equal but for rounding: sums in another order, float32 beside double, sums that cancel out.
const std::vector<std::vector<double>> rounded{
    {0.1 + 0.2, 0.3, 0.3, 0.3},
    {0.1, static_cast<double>(0.1F), 0.1, 0.1},
    {1000.1, static_cast<double>(1000.1F), 1000.1, 1000.1},
    {0.1 + 0.2 - 0.3, 0, 0, 0},
    {-2.0 / 3, -1 + 1.0 / 3, -2.0 / 3, static_cast<double>(-2.0F / 3)},
};

}  // namespace

TEST_CASE("advantages: sample deviation and 1e-4, if nothing else is asked for") {
    const double sample = std::sqrt(1.0 / 3);
    for (const double advantage : advantages_of({0, 1, 0, 1})) {
        CHECK(std::fabs(advantage) == doctest::Approx(0.5 / (sample + 1e-4)).epsilon(1e-14));
    }
    const auto exact = advantages_of({0, 1, 0, 1}, {.epsilon = 0});
    CHECK(exact[1] == doctest::Approx(0.5 / sample).epsilon(1e-14));
    const AdvantageFormula population{.deviation = Deviation::population, .epsilon = 1e-8};
    CHECK(advantages_of({0, 1, 0, 1}, population)[1] ==
          doctest::Approx(0.5 / (0.5 + 1e-8)).epsilon(1e-14));
}

TEST_CASE("advantages: rewards that differ by rounding only have none") {
    for (const auto& rewards : rounded) {
        for (const auto kind : {Advantages::grpo, Advantages::mean, Advantages::loo}) {
            for (const double epsilon : {0.0, 1e-8, 1e-4}) {
                for (const auto& advantage :
                     advantages_of(rewards, {.kind = kind, .epsilon = epsilon})) {
                    CHECK(advantage == 0);
                }
            }
        }
    }
    CHECK(are_flat(5, 5));
    CHECK(are_flat(1, 1 + 0.9e-6));
    CHECK(!are_flat(1, 1 + 1.1e-6));
    CHECK(are_flat(-1e3, -1e3 + 0.9e-3));
    CHECK(!are_flat(-1e3, -1e3 + 1.1e-3));
    CHECK(!are_flat(-1e-9, 1e-9));  // a small signal is one
    CHECK(are_flat(0, 0.9e-12));
}

TEST_CASE("stash: a group whose rewards differ by rounding is dropped as one without variance") {
    for (const auto& rewards : rounded) {
        Bench bench({.group_size = 4,
                     .zero_variance = ZeroVariance::drop,
                     .batch = BatchTarget::groups(1)});
        for (std::uint32_t i = 0; i < 4; i++) bench.send(1, i, rewards[i]);
        CHECK(bench.dropped(DropReason::zero_variance) == 4);
        for (std::uint32_t i = 0; i < 4; i++) bench.send(2, i, rewards[i] + (i == 2 ? 1e-3 : 0));
        CHECK(bench.cut());
    }
}

TEST_CASE("stash: an epsilon that is no number, or below 0, is refused by name") {
    for (const double epsilon : {-1e-9, std::nan(""), HUGE_VAL}) {
        const auto valid = validate({.advanced = {.deviation_epsilon = epsilon}});
        REQUIRE(!valid.has_value());
        CHECK(valid.error().message.find("deviation_epsilon") != std::string::npos);
    }
}

TEST_CASE("advantages: numbers at the ends of their range make no NaN") {
    constexpr double most = std::numeric_limits<double>::max();
    constexpr double least = std::numeric_limits<double>::denorm_min();
    for (const auto& rewards :
         {std::vector<double>{most, -most}, std::vector<double>{most, most, -most},
          std::vector<double>{most / 4, -most / 4, 0}, std::vector<double>{least, 0}}) {
        for (const auto kind : {Advantages::grpo, Advantages::mean, Advantages::loo}) {
            for (const double advantage : advantages_of(rewards, {.kind = kind, .epsilon = 0})) {
                CHECK(std::isfinite(advantage));
            }
        }
    }
}

TEST_CASE("advantages: they are zeros, never NaN, where there is nothing to compare") {
    for (const auto kind : {Advantages::grpo, Advantages::mean, Advantages::loo}) {
        for (const auto& rewards : {std::vector<double>{3.0}, std::vector<double>{0.1, 0.1, 0.1},
                                    std::vector<double>{1.0, std::nan(""), HUGE_VAL}}) {
            std::vector<double> advantages(rewards.size(), 9.0);
            group_advantages(rewards, {.kind = kind}, advantages);
            for (const double advantage : advantages) CHECK(advantage == 0.0);
        }
    }
    const std::vector<double> rewards{1, 2, 6};
    std::vector<double> advantages(3);
    group_advantages(rewards, {.kind = Advantages::loo}, advantages);
    CHECK(advantages[2] == doctest::Approx(6 - 1.5));
    group_advantages(rewards, {.kind = Advantages::mean}, advantages);
    CHECK(advantages[0] == doctest::Approx(-2));
}

TEST_CASE("advantages: a member without a reward does not zero the advantages of the others") {
    const std::vector<double> known{1, 2, 6};
    const std::vector<double> partly{1, std::nan(""), 2, HUGE_VAL, 6, -HUGE_VAL};
    for (const auto kind : {Advantages::grpo, Advantages::mean, Advantages::loo}) {
        std::vector<double> alone(3);
        std::vector<double> among(6, 9.0);
        group_advantages(known, {.kind = kind}, alone);
        group_advantages(partly, {.kind = kind}, among);
        CHECK(alone[0] != 0);
        CHECK(among == std::vector<double>{alone[0], 0, alone[1], 0, alone[2], 0});
    }
}
