#pragma once
// The GPUs that gather out of one ring, and their outstanding reads.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "forks.hpp"
#include "rollring/gather.hpp"

namespace rollring::python {

// A GPU's outstanding read: it is done once the mark is reached.
struct DeviceRead {
    std::shared_ptr<const Gatherer> gatherer;
    std::uint64_t mark;
};

// One for each GPU, by its ordinal; one thread at a time uses each.
class Gatherers {
  public:
    Gatherers() = default;
    Gatherers(const Gatherers&) = delete;
    Gatherers& operator=(const Gatherers&) = delete;
    ~Gatherers() {
        if (forks_ == fork_number()) return;
        // A child has neither the threads nor the GPU of its parent: its copies stay as they are.
        // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): a child without memory ends here
        static auto& kept = *new std::vector<std::shared_ptr<Gatherer>>();
        for (auto& [gpu, one] : all_) kept.push_back(std::move(one.gatherer));
    }

    // Calls run(gatherer) without the GIL. `read`: the GPU read that is under way afterwards, also
    // if the call failed.
    template <class Run>
    Result<void> use(int gpu, Stream stream, Run run, std::optional<DeviceRead>& read) {
        One& one = of(gpu);
        const std::scoped_lock lock(one.mutex);
        if (one.gatherer == nullptr) {
            auto opened = Gatherer::open(Device::cuda(gpu));
            if (!opened) return std::unexpected(opened.error());
            one.gatherer = std::make_shared<Gatherer>(std::move(*opened));
        }
        Result<void> done = run(*one.gatherer);
        const auto mark = one.gatherer->mark(stream);
        if (mark) read = DeviceRead{one.gatherer, *mark};
        if (!done || mark) return done;
        return std::unexpected(mark.error());
    }
    [[nodiscard]] GatherStat stat(int gpu) {
        One& one = of(gpu);
        const std::scoped_lock lock(one.mutex);
        return one.gatherer == nullptr ? GatherStat{} : one.gatherer->stat();
    }

  private:
    struct One {
        std::mutex mutex;
        std::shared_ptr<Gatherer> gatherer;
    };
    One& of(int gpu) {
        const std::scoped_lock lock(mutex_);
        return all_[gpu];
    }

    std::uint64_t forks_ = fork_number();
    std::mutex mutex_;
    std::map<int, One> all_;
};

}  // namespace rollring::python
