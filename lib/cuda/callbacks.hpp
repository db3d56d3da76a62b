#pragma once
// Calls of functions once streams have got somewhere.
//
// A thread polls events: a host function of the driver is called later, and has work on the GPU
// behind it, for which the GPU turns from another process to this one.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "backend.hpp"
#include "gpu.hpp"
#include "marks.hpp"

namespace rollring::cuda {

// Thread-safe. Calls come from one thread, in the order in which they were added.
class Callbacks {
  public:
    explicit Callbacks(std::shared_ptr<const Gpu> gpu) : gpu_(gpu), marks_(std::move(gpu)) {}
    Callbacks(const Callbacks&) = delete;
    Callbacks& operator=(const Callbacks&) = delete;
    // Calls that are still to come do not come any more. A forked child has no such thread: the
    // ends of a channel, which own this object, are not destroyed there.
    ~Callbacks();

    // Calls `reached(context)` once all work is done that these streams have now. After an error of
    // the device no call comes. Requires a current context.
    Result<void> add(std::span<const CUstream> streams, device::Reached reached, void* context);
    // Waits until all calls have returned: timed_out, device_error.
    Result<void> wait(Deadline deadline);

  private:
    struct Call {
        std::uint64_t mark;
        device::Reached reached;
        void* context;
    };
    Result<void> start();
    void work();
    // False: this object ends, or the device has failed.
    bool poll(std::uint64_t mark);

    std::shared_ptr<const Gpu> gpu_;
    Marks marks_;
    std::mutex mutex_;
    std::condition_variable added_;
    std::deque<Call> calls_;  // the first is being made
    std::optional<Error> failure_;
    std::atomic<bool> ends_ = false;
    std::thread thread_;  // from the first call on
};

}  // namespace rollring::cuda
