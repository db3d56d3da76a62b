#include "callbacks.hpp"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "quiet_thread.hpp"

namespace rollring::cuda {
namespace {

// Copies of a slot take less, unless the stream has other work before them.
constexpr std::int64_t polling_ns = 2'000'000;

// A small share of the wait so far.
std::chrono::nanoseconds nap_after(std::int64_t waited_ns) {
    return std::chrono::nanoseconds(std::clamp<std::int64_t>(waited_ns / 32, 20'000, 1'000'000));
}

}  // namespace

Callbacks::~Callbacks() {
    if (!thread_.joinable()) return;
    {
        const std::scoped_lock lock(mutex_);
        ends_ = true;
    }
    added_.notify_one();
    thread_.join();
}

// Requires the mutex.
Result<void> Callbacks::start() {
    if (thread_.joinable()) return {};
    const int error = start_quiet_thread(thread_, [this] { work(); });
    if (error == 0) return {};
    return failed(Errc::system, error, "cannot start a thread for a GPU's callbacks");
}

Result<void> Callbacks::add(std::span<const CUstream> streams, device::Reached reached,
                            void* context) {
    const std::scoped_lock lock(mutex_);
    if (auto started = start(); !started) return started;
    std::uint64_t last = 0;
    for (CUstream stream : streams) {
        const auto mark = marks_.set(stream);
        if (!mark) return std::unexpected(mark.error());
        last = *mark;
    }
    calls_.push_back({last, reached, context});
    added_.notify_one();
    return {};
}

bool Callbacks::poll(std::uint64_t mark) {
    const std::int64_t begun_ns = monotonic_ns();
    while (!ends_) {
        const auto there = marks_.all_reached(mark);
        if (!there) {
            const std::scoped_lock lock(mutex_);
            failure_ = there.error();
            return false;
        }
        if (*there) return true;
        const std::int64_t waited_ns = monotonic_ns() - begun_ns;
        if (waited_ns < polling_ns) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(nap_after(waited_ns));
        }
    }
    return false;
}

void Callbacks::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        added_.wait(lock, [&] { return ends_ || !calls_.empty(); });
        if (ends_) return;
        const Call call = calls_.front();
        lock.unlock();
        if (!poll(call.mark)) return;
        call.reached(call.context);
        lock.lock();
        calls_.pop_front();
    }
}

Result<void> Callbacks::wait(Deadline deadline) {
    for (;;) {
        {
            const std::scoped_lock lock(mutex_);
            if (failure_) return std::unexpected(*failure_);
            if (calls_.empty()) return {};
        }
        if (deadline.passed()) {
            return refused(Errc::timed_out,
                           fmt::format("GPU {}: a stream did not get there by the deadline",
                                       gpu_->device().gpu));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

}  // namespace rollring::cuda
