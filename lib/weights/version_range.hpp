#pragma once
// The range of version numbers.

#include <fmt/core.h>

#include "rollring/weights.hpp"

namespace rollring::weights {

inline Result<void> check_version(std::int64_t version) {
    if (version <= weight_version_max) return {};
    return refused(
        Errc::invalid_argument,
        fmt::format("version {} is out of range: the largest is {}", version, weight_version_max));
}

}  // namespace rollring::weights
