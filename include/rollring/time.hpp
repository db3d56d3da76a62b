#pragma once
// Time as rollring uses it: nanoseconds in an i64, and deadlines instead of time-outs.

#include <cstdint>

namespace rollring {

// CLOCK_MONOTONIC in ns: one clock for all processes of the machine; for ages and deadlines.
std::int64_t monotonic_ns();

// CLOCK_REALTIME in ns since 1970: for created_ns and finished_ns of a trajectory.
std::int64_t realtime_ns();

// The moment by which a call returns, on the clock of monotonic_ns().
struct Deadline {
    std::int64_t at_ns;

    static Deadline now() { return {0}; }
    static Deadline after_ns(std::int64_t ns) { return {monotonic_ns() + ns}; }
    static Deadline after_ms(std::int64_t ms) { return after_ns(ms * 1'000'000); }

    [[nodiscard]] bool passed() const { return at_ns == 0 || monotonic_ns() >= at_ns; }
};

}  // namespace rollring
