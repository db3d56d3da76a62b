#pragma once
// Staging by difference: an engine compares an incoming version with the tensors that it serves,
// and exchanges only the values that differ.

#include <cstdint>
#include <string_view>

#include "rollring/version.hpp"

namespace rollring {

// The way of a version into the engine's tensors.
enum class Staging : std::uint8_t {
    copy,   // load copies it there
    delta,  // load lists the values that differ, adopt exchanges them
};
ROLLRING_API std::string_view name(Staging staging);

// For Staging::delta: a version that changes more than the list can hold.
enum class DeltaFallback : std::uint8_t {
    refuse,    // rejected; copied in place by an engine that serves no version, or is poisoned
    beside,    // the list grows beyond its bound
    in_place,  // copied into the tensors while it comes: a failure poisons the subscriber
};
ROLLRING_API std::string_view name(DeltaFallback fallback);

// The way that a version took.
enum class DeltaWay : std::uint8_t {
    list,      // it fitted
    beside,    // the list has grown
    in_place,  // it was copied into the tensors
};
ROLLRING_API std::string_view name(DeltaWay way);

// The last version that an engine with Staging::delta compared, even if it was refused then.
struct DeltaReport {
    std::int64_t version = -1;  // -1: none yet
    DeltaWay way = DeltaWay::list;
    std::uint64_t elements = 0;    // compared, before the copying in place began
    std::uint64_t changed = 0;     // of these
    std::uint64_t list_bytes = 0;  // for these
    std::int64_t compare_ns = 0;   // load: the comparisons, without waits for parts
    std::int64_t swap_ns = 0;      // adopt: exchanging, which the engine waits for
};

}  // namespace rollring
