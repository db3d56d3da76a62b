#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rollring::cli {

// What is packed in `gzip`, by zlib. Throws BadBody: it is none, it is cut off, or it would be
// longer than `most` bytes, and then no more than those were unpacked.
std::string unpack_gzip(std::string_view gzip, std::size_t most);

}  // namespace rollring::cli
