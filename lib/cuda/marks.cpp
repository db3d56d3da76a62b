#include "marks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace rollring::cuda {

Marks::~Marks() {
    const Context::Scope scope(gpu_->context());
    for (const auto& [mark, event] : open_) gpu_->api().cuEventDestroy(event);
    for (CUevent event : free_) gpu_->api().cuEventDestroy(event);
}

Result<CUevent> Marks::take_event() {
    if (!free_.empty()) {
        CUevent event = free_.back();
        free_.pop_back();
        return event;
    }
    CUevent event = nullptr;
    const CUresult result = gpu_->api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) return event;
    return std::unexpected(
        cuda_error(result, fmt::format("GPU {}: cannot create an event", gpu_->device().gpu)));
}

Result<std::uint64_t> Marks::set(CUstream stream) {
    const std::scoped_lock lock(mutex_);
    // Also checks older marks that no caller has asked for: two at a time, because each check costs
    // about as much as setting a mark; all of them once many are open.
    constexpr std::size_t some = 8;
    constexpr std::size_t many = 64;
    if (open_.size() >= some && look(open_.begin())) look(open_.begin());
    if (open_.size() >= many) look_at_all();
    auto event = take_event();
    if (!event) return std::unexpected(event.error());
    const CUresult result = gpu_->api().cuEventRecord(*event, stream);
    if (result != CUDA_SUCCESS) {
        free_.push_back(*event);
        return gpu_->stream_failure(result);
    }
    open_.emplace(++last_, *event);
    return last_;
}

bool Marks::look(std::map<std::uint64_t, CUevent>::iterator at) {
    const CUresult result = gpu_->api().cuEventQuery(at->second);
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result != CUDA_SUCCESS && !failed_) failed_ = gpu_->stream_failure(result).error();
    free_.push_back(at->second);
    open_.erase(at);
    return true;
}

void Marks::look_at_all() {
    for (auto at = open_.begin(); at != open_.end();) look(at++);
}

Result<bool> Marks::reached(std::uint64_t mark) {
    const Context::Scope scope(gpu_->context());
    const std::scoped_lock lock(mutex_);
    const auto found = open_.find(mark);
    const bool there = found == open_.end() || look(found);
    if (failed_) return std::unexpected(*failed_);
    return there;
}

Result<bool> Marks::all_reached(std::uint64_t mark) {
    const Context::Scope scope(gpu_->context());
    const std::scoped_lock lock(mutex_);
    bool there = true;
    while (there && !open_.empty() && open_.begin()->first <= mark) there = look(open_.begin());
    if (failed_) return std::unexpected(*failed_);
    return there;
}

Result<void> Marks::wait(std::uint64_t mark, Deadline deadline) {
    constexpr std::chrono::microseconds longest{1000};
    for (std::chrono::microseconds pause{20};; pause = std::min(2 * pause, longest)) {
        const auto there = reached(mark);
        if (!there) return std::unexpected(there.error());
        if (*there) return {};
        if (deadline.passed()) {
            return refused(
                Errc::timed_out,
                fmt::format("GPU {}: a gather did not finish by the deadline", gpu_->device().gpu));
        }
        std::this_thread::sleep_for(pause);
    }
}

void Marks::wait_all() {
    const Context::Scope scope(gpu_->context());
    const std::scoped_lock lock(mutex_);
    for (const auto& [mark, event] : open_) gpu_->api().cuEventSynchronize(event);
    look_at_all();
}

}  // namespace rollring::cuda
