#pragma once
// A stash that has read a predecessor's records, for tests of the permission to open a group.

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

inline Push send(Producer& producer, const std::string& prompt, std::uint32_t repetition,
                 Deadline deadline) {
    return send(producer, {.prompt = prompt, .repetition = repetition, .tokens = 20}, deadline);
}

// Of groups of two.
inline const StashOptions ten{
    .group_size = 2, .batch = BatchTarget::groups(1), .max_open_groups = 10};

inline std::unique_ptr<Stash> open_settled(const TestRing& ring, const StashOptions& options) {
    auto opened = Stash::open(ring.name(), options);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    auto stash = std::move(*opened);
    Batch batch;  // reads a predecessor's records, so that its groups are counted
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    return stash;
}

}  // namespace rollring::test
