#pragma once
// Time as rollring uses it. A wait has a Deadline; a span in options is a std::chrono duration;
// reported times and ages are i64 nanoseconds, named `_ns`.

#include <chrono>
#include <cstdint>
#include <limits>

#include "rollring/version.hpp"

namespace rollring {

// CLOCK_MONOTONIC in ns: one clock for all processes of the machine; for ages and deadlines.
ROLLRING_API std::int64_t monotonic_ns();

// CLOCK_REALTIME in ns since 1970: for created_ns and finished_ns of a trajectory.
ROLLRING_API std::int64_t realtime_ns();

// The moment by which a call returns, on the clock of monotonic_ns().
struct Deadline {
    std::int64_t at_ns;

    // A deadline that has passed: the call does not wait.
    static constexpr Deadline now() { return {0}; }
    static constexpr Deadline never() { return {std::numeric_limits<std::int64_t>::max()}; }
    // A span that overflows the clock is never(); a negative span has expired.
    static Deadline after(std::chrono::nanoseconds span) { return after_ns(span.count()); }
    static Deadline after_ns(std::int64_t ns) {
        const std::int64_t from_ns = monotonic_ns();
        return ns > never().at_ns - from_ns ? never() : Deadline{from_ns + ns};
    }
    static Deadline after_ms(std::int64_t ms) {
        if (ms > never().at_ns / 1'000'000) return never();
        return ms < 0 ? now() : after_ns(ms * 1'000'000);
    }

    [[nodiscard]] bool passed() const { return at_ns == 0 || monotonic_ns() >= at_ns; }
};

}  // namespace rollring
