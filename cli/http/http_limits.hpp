#pragma once
// The limits of an HTTP server, in a header without Boost.Beast, for the command lines.

#include <cstddef>
#include <cstdint>

namespace rollring::cli {

struct HttpLimits {
    std::size_t body_bytes = std::size_t{1} << 30;  // of one body, unpacked
    std::size_t small_bytes = std::size_t{64} << 10;
    std::ptrdiff_t large_bodies = 4;  // larger than small_bytes: this many are in memory at a time,
                                      // and others stay in their sockets
    std::size_t connections = 512;    // further ones are answered 503
    std::int64_t silence_ms = 30'000;  // within a request or an answer
    std::int64_t idle_ms = 120'000;    // between two requests
};

}  // namespace rollring::cli
