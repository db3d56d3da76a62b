#include "clock.hpp"

#include <ctime>

std::int64_t bench::scale::clock_ns = clock_begin_ns;

extern "C" int clock_gettime(clockid_t, timespec* now) noexcept {
    now->tv_sec = bench::scale::clock_ns / 1'000'000'000;
    now->tv_nsec = bench::scale::clock_ns % 1'000'000'000;
    return 0;
}
