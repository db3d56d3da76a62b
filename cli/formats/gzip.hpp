#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rollring::cli {

struct BadGzip : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct GzipTooLong : BadGzip {
    using BadGzip::BadGzip;
};

inline bool is_gzip(std::string_view bytes) {
    return bytes.starts_with("\x1f\x8b");
}

// Unpacks gzip by zlib. Throws BadGzip if the bytes are not gzip or are truncated, and GzipTooLong
// if they contain more than `most` bytes; no more than that is unpacked.
std::string unpack_gzip(std::string_view gzip, std::size_t most);

}  // namespace rollring::cli
