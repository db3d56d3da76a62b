#pragma once
// A tap of a test's ring, and the records of one round.

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "rollring/tap.hpp"
#include "support/test_ring.hpp"

namespace rollring::test {

inline Tap tap_of(const TestRing& ring, const TapOptions& options = {}) {
    auto tap = Tap::attach(ring.name(), options);
    REQUIRE_MESSAGE(tap.has_value(), (tap ? "" : tap.error().to_string()));
    return std::move(*tap);
}

// "prompt/repetition" of each record.
inline std::vector<std::string> round_of(Tap& tap) {
    std::vector<std::string> names;
    TapRecord record;
    while (tap.poll(record) == TapPoll::record) {
        names.push_back(fmt::format("{}/{}", record.view.instance_id(),
                                    record.view.meta().repetition_id.value_or(0)));
    }
    return names;
}

}  // namespace rollring::test
