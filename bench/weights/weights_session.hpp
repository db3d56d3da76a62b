#pragma once
// One session of `rollring-bench weights`: a trainer and an engine, each a process of its own, and
// so many versions from the one to the other.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/weights.hpp"
#include "weights/tensor_lists.hpp"

namespace bench {

// The way of a version into the tensors that the engine serves.
enum class SyncWay : std::uint8_t {
    in_place,
    beside,  // into other memory, and from there with a copy
    difference,
};
std::string_view name(SyncWay way);

struct SessionPlan {
    std::string list_name;
    TensorList list;
    double share = 1;
    rollring::Device device;
    rollring::PayloadMemory memory = rollring::PayloadMemory::automatic;
    std::uint32_t slots = 2;
    std::uint64_t slot_bytes = 0;
    std::chrono::nanoseconds spin = std::chrono::microseconds(20);
    bool checksums = false;
    bool cast = false;
    std::uint64_t warmup = 2;    // versions that are not counted
    std::uint64_t versions = 7;  // and those that are
    SyncWay way = SyncWay::in_place;
    // For SyncWay::difference: shares of the elements that a version changes. So many versions for
    // each.
    std::vector<double> changed{};
    bool copies = true;          // two plain copies before each version, for comparison
    bool soak = false;           // many versions, to see that nothing grows
    bool pause = false;          // after the first version, until a line comes on stdin
    std::int64_t limit_s = 600;  // for a whole session

    [[nodiscard]] std::uint64_t round() const { return warmup + versions; }
    [[nodiscard]] std::uint64_t total() const {
        return round() * std::max<std::uint64_t>(1, changed.size());
    }
    [[nodiscard]] bool counts(std::uint64_t version) const {
        return (version - 1) % round() >= warmup;
    }
};

// One version, as the trainer saw it.
struct Sample {
    std::int64_t whole_ns;    // begin to commit returned
    std::int64_t live_ns;     // begin until the engine serves it
    std::int64_t control_ns;  // publish to commit returned
    std::int64_t copies_ns;   // two plain copies of as many bytes; 0: not measured
    rollring::SyncTimes times;
};

// The same version, as the engine saw it.
struct EngineSample {
    std::int64_t pause_ns;        // the engine could not serve
    rollring::DeltaReport delta;  // by difference
};

// Counts that must not grow from sync to sync.
struct Holdings {
    std::int64_t device_free_bytes;
    std::int64_t fds;
    std::int64_t rss_bytes;
    std::int64_t shm_objects;
    std::int64_t shm_bytes;
};

struct SideReport {
    Holdings early;  // after the first 20 versions, or the first
    Holdings last;
    std::uint64_t digest;        // of the last version's tensors
    std::uint64_t passed_early;  // handles passed, or imports
    std::uint64_t passed_last;
};

struct SessionReport {
    SyncWay way = SyncWay::in_place;
    // Versions that count; by difference, in the order of SessionPlan::changed.
    std::vector<Sample> samples;
    std::vector<EngineSample> engine_samples;
    SideReport trainer{};
    SideReport engine{};
    std::uint64_t payload_bytes = 0;
    std::uint32_t parts = 0;
    std::uint32_t slots = 0;
    rollring::PayloadMemory memory{};

    [[nodiscard]] bool verified() const { return trainer.digest == engine.digest; }
};

inline constexpr std::uint64_t early_versions = 20;

// Ends the program if it does not succeed.
SessionReport run_session(const SessionPlan& plan);

}  // namespace bench
