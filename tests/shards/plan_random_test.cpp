// The planner on random layouts, against a reference that looks at every element.

#include <doctest/doctest.h>

#include <algorithm>

#include "random_layouts.hpp"

namespace rollring::test {
namespace {

void check_counts(const WeightPlan& plan, const LayoutCase& given, const Truth& truth) {
    std::uint64_t bytes = 0;
    std::uint64_t padding = 0;
    for (std::size_t i = 0; i < truth.wants.size(); i++) {
        for (const Element& element : truth.wants[i]) {
            (element.values < 0 ? padding : bytes) +=
                element.values < 0 ? 1 : given.to.memories()[i].dtype.bytes();
        }
    }
    CHECK(plan.padding_elements() == padding);
    CHECK(plan.local_bytes() + plan.remote_bytes() == bytes);
    std::uint64_t copies = 0;
    std::uint64_t local = 0;
    std::uint64_t moved = 0;
    const auto device = [](const std::vector<std::uint32_t>& devices, std::uint32_t rank) {
        return devices.empty() ? rank : devices[rank];
    };
    for (const PlanTraffic& pair : plan.traffic()) {
        copies += pair.copies;
        moved += pair.bytes;
        local += pair.local ? pair.bytes : 0;
        CHECK(pair.local == (device(given.options.from_devices, pair.from_rank) ==
                             device(given.options.to_devices, pair.to_rank)));
    }
    CHECK(copies == plan.copies());
    CHECK(moved == bytes);
    for (std::size_t i = 0; i < plan.copies(); i++) {
        const PlanCopy copy = plan.copy(i);
        const DType from = given.from.memories()[copy.from].dtype;
        const DType to = given.to.memories()[copy.to].dtype;
        CHECK((from == to || (from == dtype_f32 && (to == dtype_bf16 || to == dtype_f16))));
    }
    CHECK(local == plan.local_bytes());
}

}  // namespace

TEST_CASE("a plan of random layouts moves every element once, or names the culprit") {
    std::size_t fitting = 0;
    std::size_t refused = 0;
    for (unsigned seed = 1; seed <= 10'000; seed++) {
        CAPTURE(seed);
        std::mt19937_64 dice(seed);
        const LayoutCase given = random_layouts(dice);
        const Truth truth = truth_of(given);
        const auto plan = WeightPlan::make(given.from, given.to, given.options);
        REQUIRE_MESSAGE(plan.has_value() == truth.fits,
                        (plan ? std::string() : plan.error().to_string()));
        if (!plan) {
            refused++;
            const auto named = [&](const std::string& culprit) {
                return plan.error().message.contains(culprit);
            };
            CHECK_MESSAGE(std::ranges::any_of(truth.culprits, named), plan.error().to_string());
            CHECK((plan.error().code == Errc::layout_mismatch ||
                   plan.error().code == Errc::unsupported));
            continue;
        }
        fitting++;
        const auto moved = run_plan(*plan, given, truth.has);
        REQUIRE(moved.has_value());
        REQUIRE(*moved == truth.wants);
        check_counts(*plan, given, truth);
        const auto from = WeightLayout::from_bytes(given.from.to_bytes());
        REQUIRE(from.has_value());
        CHECK(from->hash() == given.from.hash());
    }
    CHECK(fitting > 5'000);
    CHECK(refused > 1'000);
}

}  // namespace rollring::test
