#pragma once
// One wait at a time in a thread of its own, for event loops: they watch an eventfd, and never
// block.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "forks.hpp"
#include "released.hpp"
#include "rollring/time.hpp"

namespace rollring::python {

class Waiter {
  public:
    struct End {
        void operator()(Waiter* waiter) const;  // ends the wait, within a slice
    };
    using Ptr = std::unique_ptr<Waiter, End>;
    static Ptr make() { return Ptr(new Waiter()); }

    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    // Readable once the current wait is over.
    [[nodiscard]] int fd() const { return fd_; }

    // Calls step(slice), without the GIL, until it returns true, the deadline is over, or cancel().
    // Requires that no earlier wait is running: see finish().
    void begin(std::function<bool(Deadline)> step, Deadline deadline);
    // Ends the wait within a slice.
    void cancel();
    // Waits without the GIL until the current wait is over.
    void finish();
    [[nodiscard]] bool busy();

  private:
    Waiter();
    ~Waiter();
    void serve();
    int fd_;
    std::uint64_t forks_ = fork_number();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<bool(Deadline)> step_;  // empty: nothing to do
    Deadline deadline_{0};
    bool cancelled_ = false;
    bool stop_ = false;
    std::uint64_t serial_ = 0;
    std::thread thread_;  // from the first wait on
};

// A Waiter that is made when an event loop first asks for it. Requires the GIL.
class LoopWaiter {
  public:
    int fd() {
        if (!waiter_) waiter_ = Waiter::make();
        return waiter_->fd();
    }
    void begin(std::function<bool(Deadline)> step, Deadline deadline) {
        fd();
        waiter_->begin(std::move(step), deadline);
    }
    // Does not wait for the end, as finish() does.
    void cancel() {
        if (waiter_) waiter_->cancel();
    }
    void finish() {
        if (!waiter_) return;
        const Released released;
        waiter_->finish();
    }
    [[nodiscard]] bool busy() { return waiter_ && waiter_->busy(); }

  private:
    Waiter::Ptr waiter_;
};

}  // namespace rollring::python
