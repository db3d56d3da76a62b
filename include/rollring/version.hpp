#pragma once
// Versions of the headers, of the library that runs with them, and of shared memory; and the mark
// of exported names.

#include <cstdint>
#include <string_view>

// The library is compiled with hidden visibility: it exports only declarations with this mark.
#define ROLLRING_API [[gnu::visibility("default")]]
// A type that a public header names and the library does not export.
#define ROLLRING_LOCAL [[gnu::visibility("hidden")]]

// The version of these headers. Before 1.0, a new minor version may break programs and changes the
// soname.
#define ROLLRING_VERSION "0.2.0"
#define ROLLRING_VERSION_MAJOR 0
#define ROLLRING_VERSION_MINOR 2
#define ROLLRING_VERSION_PATCH 0

namespace rollring {

// The version of the loaded library, in the form of ROLLRING_VERSION.
ROLLRING_API std::string_view version();

// The version of the shared-memory layout. Processes share a ring only if it is equal; otherwise
// attaching fails with Errc::abi_mismatch.
ROLLRING_API std::uint32_t layout_version();

}  // namespace rollring
