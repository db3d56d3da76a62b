#pragma once
// Numbered events on the caller's streams: once a mark is reached, the work queued before it is
// done. Any thread may ask.

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu.hpp"

namespace rollring::cuda {

class Marks {
  public:
    explicit Marks(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
    Marks(const Marks&) = delete;
    ~Marks();

    // Requires a current context.
    Result<std::uint64_t> set(CUstream stream);
    Result<bool> reached(std::uint64_t mark);
    // This mark and all before it, on any stream.
    Result<bool> all_reached(std::uint64_t mark);
    // Polls: see Gpu::wait.
    Result<void> wait(std::uint64_t mark, Deadline deadline);
    // Waits for all of them, even after failures.
    void wait_all();

  private:
    Result<CUevent> take_event();
    // A reached mark gives its event back; the first failure stays.
    bool look(std::map<std::uint64_t, CUevent>::iterator at);
    void look_at_all();

    std::shared_ptr<const Gpu> gpu_;
    std::mutex mutex_;
    std::map<std::uint64_t, CUevent> open_;
    std::vector<CUevent> free_;
    std::uint64_t last_ = 0;
    std::optional<Error> failed_;
};

}  // namespace rollring::cuda
