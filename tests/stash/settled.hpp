#pragma once
// A stash that has read what a predecessor left, for tests of who may open a group.

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include "rollring/stash.hpp"
#include "support/test_ring.hpp"

namespace rollring::test {

inline std::string prompt(int number) {
    return "p" + std::to_string(number);
}

inline std::unique_ptr<Stash> open_settled(const TestRing& ring, const StashOptions& options) {
    auto opened = Stash::open(ring.name(), options);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    auto stash = std::move(*opened);
    Batch batch;  // reads what a predecessor left, so that its groups are counted
    REQUIRE(stash->next_batch(batch, Deadline::now()) == NextBatch::timed_out);
    return stash;
}

}  // namespace rollring::test
