// Whether two strided sets share an element, against a search through all of them.

#include "strided.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace rollring::shards {
namespace {

constexpr std::uint64_t many_steps = 1 << 20;

void add_elements(const Strided& of, std::vector<std::uint64_t>& to) {
    if (of.dims.empty()) return to.push_back(of.offset);
    for (std::uint64_t i = 0; i < of.dims[0].extent; i++) {
        add_elements({of.offset + i * of.dims[0].stride, of.dims.subspan(1)}, to);
    }
}

bool share(const Strided& a, const Strided& b) {
    std::vector<std::uint64_t> of_a;
    std::vector<std::uint64_t> of_b;
    add_elements(a, of_a);
    add_elements(b, of_b);
    return std::ranges::find_first_of(of_a, of_b) != of_a.end();
}

std::vector<Step> random_dims(std::mt19937& dice, std::size_t count) {
    std::vector<Step> dims;
    std::uint64_t reach = 0;
    for (std::size_t i = 0; i < count; i++) {
        const Step inside{2 + dice() % 6, reach + 1 + dice() % (i == 0 ? 2 : 7)};
        reach += (inside.extent - 1) * inside.stride;
        dims.insert(dims.begin(), inside);
    }
    return dims;
}

}  // namespace

TEST_CASE("random strided sets meet if they share an element") {
    std::mt19937 dice(1);
    std::size_t met = 0;
    constexpr std::size_t pairs = 30'000;
    for (std::size_t i = 0; i < pairs; i++) {
        CAPTURE(i);
        const std::vector<Step> a_dims = random_dims(dice, dice() % 4);
        const std::vector<Step> b_dims = random_dims(dice, dice() % 4);
        const Strided a{dice() % 40, a_dims};
        const Strided b{dice() % 40, b_dims};
        REQUIRE((is_nested(a_dims) && is_nested(b_dims)));
        std::uint64_t steps = many_steps;
        REQUIRE(meet(a, b, steps) == share(a, b));
        // Two sets of rows take none.
        if (a_dims.size() < 2 && b_dims.size() < 2) CHECK(steps == many_steps);
        met += share(a, b) ? 1 : 0;
    }
    CHECK(met > pairs / 10);
    CHECK(met < pairs * 9 / 10);
}

TEST_CASE("two sets of many rows meet or do not, without a look at each row") {
    constexpr std::uint64_t count = std::uint64_t{1} << 37;
    const std::vector<Step> even = {{2 * count, 2}};
    const std::vector<Step> fourth = {{count, 4}};
    const std::vector<Step> threes = {{count, 3}};
    const std::vector<Step> rows = {{count / 16, 64}, {24, 1}};
    std::uint64_t steps = 0;
    CHECK(meet({0, even}, {1, fourth}, steps) == false);
    CHECK(meet({0, even}, {2, fourth}, steps) == true);
    CHECK(meet({1, even}, {0, threes}, steps) == true);
    CHECK(meet({24, fourth}, {0, rows}, steps) == true);
    CHECK(meet({24, std::vector<Step>{{count / 16, 64}, {40, 1}}}, {0, rows}, steps) == false);
    CHECK(meet({24, std::vector<Step>{{count / 16, 64}, {41, 1}}}, {0, rows}, steps) == true);
    CHECK(meet({25, std::vector<Step>{{count / 32, 128}}}, {0, rows}, steps) == false);
}

TEST_CASE("a comparison of sets that cross ends with its steps") {
    const std::vector<Step> wide = {{1 << 12, std::uint64_t{1} << 26}, {1 << 12, 1 << 13}, {64, 2}};
    const std::vector<Step> other = {{1 << 12, std::uint64_t{5} << 23}, {1 << 12, 768}, {3, 2}};
    std::uint64_t steps = 1000;
    CHECK(meet({0, wide}, {1, other}, steps) == std::nullopt);
    CHECK(steps == 0);
}

}  // namespace rollring::shards
