#pragma once
// Staging by difference: an engine compares an incoming version with the tensors that it serves,
// and exchanges only the values that differ.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/time.hpp"
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
    in_place,  // copied into the tensors while it comes: a failure poisons the subscriber; of a
               // sharded trainer, copied once it is committed
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

// The answer of an engine that was asked to leave the committed version.
enum class RollbackOutcome : std::uint32_t {
    silent = 0,       // none yet: it answers at its next call of Subscriber::next
    rolled_back = 1,  // it has restored the version before
    not_live = 2,     // it serves another version
    refused = 3,      // it serves the version still
    gone = 4,         // it has left or died meanwhile
};
ROLLRING_API std::string_view name(RollbackOutcome outcome);

struct RollbackAnswer {
    std::uint32_t rank = 0;  // of its publisher
    std::string subscriber;
    std::uint32_t pid = 0;
    RollbackOutcome outcome = RollbackOutcome::silent;
    std::int64_t live_version = -1;  // now; -1: none
    std::string why;                 // of a refusal
};

struct RollbackReport {
    std::int64_t version = -1;            // that was to be left
    std::vector<RollbackAnswer> engines;  // that were attached, at each rank to which they are
};

// Asks the attached engines of all publishers of the channel to restore the version before the
// committed one, and waits for their answers; after the deadline, the engines that gave none are
// `silent`. The request stays: such an engine answers later, as long as it serves the version.
// Any process of the user may call it. Errors: not_found (no such ring, no live publisher, or no
// version is committed), timed_out (a publisher does not answer).
ROLLRING_API Result<RollbackReport> ask_rollback(std::string_view ring, Deadline deadline);

}  // namespace rollring
