// The measure of GPU memory that is given back, without a GPU.

#include "gives_back.hpp"

#include <doctest/doctest.h>

namespace rollring::test {
namespace {

constexpr std::uint64_t mib = 1 << 20;

TEST_CASE("memory that others take is no leak, and a leak is one beside it") {
    std::uint64_t free = 1024 * mib;
    const auto free_bytes = [&] { return free; };
    CHECK(gives_back(free_bytes, [] {}));
    int rounds = 0;
    CHECK(gives_back(free_bytes, [&] { free -= rounds++ < 3 ? 2 * mib : 0; }));
    CHECK(rounds == 4);
    CHECK_FALSE(gives_back(free_bytes, [&] { free -= 1; }));
    // Another process returns less than the leak.
    rounds = 0;
    CHECK_FALSE(gives_back(free_bytes, [&] { free -= rounds++ % 2 == 0 ? 2 * mib : mib; }));
}

}  // namespace
}  // namespace rollring::test
