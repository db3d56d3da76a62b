#include "rollring/time.hpp"

#include <ctime>

namespace rollring {
namespace {

std::int64_t read_clock(clockid_t clock) {
    timespec now{};
    static_cast<void>(clock_gettime(clock, &now));  // cannot fail for these clocks
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

std::int64_t monotonic_ns() {
    return read_clock(CLOCK_MONOTONIC);
}
std::int64_t realtime_ns() {
    return read_clock(CLOCK_REALTIME);
}

}  // namespace rollring
