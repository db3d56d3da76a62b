#pragma once
// How long work on a stream of the GPU takes.

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>

#include "device.hpp"

namespace rollring::test {

class Clock {
  public:
    Clock() {
        need(api().cuEventCreate(&begin_, CU_EVENT_DEFAULT), "create an event");
        need(api().cuEventCreate(&end_, CU_EVENT_DEFAULT), "create an event");
    }
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    ~Clock() {
        api().cuEventDestroy(begin_);
        api().cuEventDestroy(end_);
    }

    // Median of ten, in ms, after two that do not count.
    double median(const std::function<void(CUstream)>& work) {
        CUstream stream = gpu()->stream({});
        std::array<float, 10> times{};
        for (int i = -2; i < 10; i++) {
            need(api().cuEventRecord(begin_, stream), "record an event");
            work(stream);
            need(api().cuEventRecord(end_, stream), "record an event");
            need(api().cuEventSynchronize(end_), "wait for an event");
            if (i < 0) continue;
            need(api().cuEventElapsedTime(&times[static_cast<std::size_t>(i)], begin_, end_),
                 "read events");
        }
        std::ranges::sort(times);
        return (static_cast<double>(times[4]) + static_cast<double>(times[5])) / 2;
    }

  private:
    CUevent begin_ = nullptr;
    CUevent end_ = nullptr;
};

}  // namespace rollring::test
