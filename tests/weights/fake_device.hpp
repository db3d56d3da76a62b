#pragma once
// A GPU made of host memory and the CPU, whose streams stop when a test says so, and which fails
// when a test says so: for failures that a real device has only on bad days. Stands in for
// lib/cuda.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rollring/weight_tensor.hpp"

namespace rollring::test {

struct FakeDevice {
    std::atomic<bool> stopped = false;            // streams do not get anywhere
    std::atomic<bool> failed = false;             // nor ever will
    std::atomic<bool> refuses = false;            // copies cannot be queued
    std::atomic<bool> loses = false;              // its work runs, but callers get an error
    std::atomic<bool> is_full = false;            // there is no memory left
    std::atomic<bool> raced = false;              // a list was cleared while it was exchanged
    std::atomic<void*> compares_on = nullptr;     // the stream named last
    std::atomic<const void*> released = nullptr;  // no memory is at this address any more
    std::atomic<const void*> unpacked = nullptr;  // the memory that was copied from last
    std::atomic<std::uint64_t> kept_bytes = 0;    // for the list of the next differences
    std::atomic<double> share = 1;                // of the difference that was made last
    std::atomic<int> verifications = 0;           // of parts, that were asked for
    std::atomic<int> comparisons = 0;             // of parts, that ended
    std::atomic<int> compare_calls = 0;           // that ended
    std::atomic<int> stops_at = -1;               // this comparison stops the device
    std::atomic<int> compared_by_mark = -1;       // of them, before a mark was set while this is -1
    std::atomic<int> blocks = 0;                  // that were made and not freed
    // Runs the work that waits on the streams, and lets them go on.
    void go_on();
    // Healthy, nothing queued; a failed device's queue is forgotten.
    void reset();
    [[nodiscard]] std::size_t queued() const;
    [[nodiscard]] std::size_t queued(Stream stream) const;  // on this one
};

// Publishers use device 0, subscribers 1.
inline constexpr Device trainer_gpu{0};
inline constexpr Device engine_gpu{1};
FakeDevice& fake_device(Device device);

}  // namespace rollring::test
