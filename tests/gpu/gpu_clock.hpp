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

    // In ms.
    double once(const std::function<void(CUstream)>& work) {
        CUstream stream = gpu()->stream({});
        need(api().cuEventRecord(begin_, stream), "record an event");
        work(stream);
        need(api().cuEventRecord(end_, stream), "record an event");
        need(api().cuEventSynchronize(end_), "wait for an event");
        float took = 0;
        need(api().cuEventElapsedTime(&took, begin_, end_), "read events");
        return took;
    }
    // Median of ten, in ms, after two that do not count.
    double median(const std::function<void(CUstream)>& work) {
        std::array<double, 10> times{};
        for (int i = -2; i < 10; i++) {
            const double took = once(work);
            if (i >= 0) times[static_cast<std::size_t>(i)] = took;
        }
        std::ranges::sort(times);
        return (times[4] + times[5]) / 2;
    }

  private:
    CUevent begin_ = nullptr;
    CUevent end_ = nullptr;
};

}  // namespace rollring::test
