#pragma once
// Versions of the headers, of the library that runs with them, and of shared memory; and the mark
// of exported names.

#include <cstdint>
#include <string_view>

// A name that librollring.so exports. The library is compiled with hidden visibility: it exports
// only names with the first of these marks.
#define ROLLRING_API [[gnu::visibility("default")]]
// A type that a public header has to name, and that stays inside.
#define ROLLRING_LOCAL [[gnu::visibility("hidden")]]

// Of these headers. Below 1.0 another minor version may break programs, and has another soname.
#define ROLLRING_VERSION "0.1.0"
#define ROLLRING_VERSION_MAJOR 0
#define ROLLRING_VERSION_MINOR 1
#define ROLLRING_VERSION_PATCH 0

namespace rollring {

// Of the library that this process runs with, as ROLLRING_VERSION.
ROLLRING_API std::string_view version();

// Of the layout of shared memory. Processes share a ring if theirs are equal; one that meets a ring
// of another version is told Errc::abi_mismatch.
ROLLRING_API std::uint32_t layout_version();

}  // namespace rollring
