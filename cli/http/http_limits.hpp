#pragma once
// The limits of an HTTP server, apart from Boost.Beast: command lines are read without it.

#include <cstddef>
#include <cstdint>

namespace rollring::cli {

struct HttpLimits {
    std::size_t body_bytes = std::size_t{1} << 30;  // of one body, unpacked
    std::size_t small_bytes = std::size_t{64} << 10;
    std::ptrdiff_t large_bodies = 4;  // more than small_bytes: so many are in memory at a time, and
                                      // others stay in their sockets
    std::size_t connections = 512;    // a further one is answered 503
    std::int64_t silence_ms = 30'000;  // in the middle of what is asked or answered
    std::int64_t idle_ms = 120'000;    // between two questions
};

}  // namespace rollring::cli
