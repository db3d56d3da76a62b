#include "waiter.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace rollring::python {

Waiter::Waiter() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot make an eventfd");
}

void Waiter::End::operator()(Waiter* waiter) const {
    // A child's copy is left as it is: its thread is the parent's, and its lock may be held.
    if (waiter->forks_ == fork_number()) {
        delete waiter;
    } else {
        ::close(waiter->fd_);
    }
}

Waiter::~Waiter() {
    if (thread_.joinable()) {
        {
            const std::scoped_lock lock(mutex_);
            stop_ = cancelled_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    ::close(fd_);
}

void Waiter::begin(std::function<bool(Deadline)> step, Deadline deadline) {
    if (!thread_.joinable()) {
        // Signals are for the main thread.
        sigset_t all;
        sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_BLOCK, &all, &before);
        try {
            thread_ = std::thread([this] { serve(); });
        } catch (const std::system_error& refusal) {
            ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw std::system_error(refusal.code(), "cannot start a thread for an awaited call");
        }
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    const std::scoped_lock lock(mutex_);
    std::uint64_t count = 0;
    // Of a wait that no caller has read; this never blocks.
    // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
    static_cast<void>(::read(fd_, &count, sizeof count));
    step_ = std::move(step);
    serial_++;
    deadline_ = deadline;
    cancelled_ = false;
    changed_.notify_all();
}

void Waiter::cancel() {
    const std::scoped_lock lock(mutex_);
    cancelled_ = true;
}

void Waiter::finish() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = serial_;
    changed_.wait(lock, [&] { return step_ == nullptr || serial_ != mine; });
}

bool Waiter::busy() {
    const std::scoped_lock lock(mutex_);
    return step_ != nullptr;
}

void Waiter::serve() {
    constexpr std::int64_t slice_ns = 50'000'000;
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return step_ != nullptr || stop_; });
        if (step_ == nullptr) return;
        const Deadline slice = Deadline::after_ns(slice_ns);
        const bool last = deadline_.at_ns <= slice.at_ns;
        lock.unlock();
        const bool done = step_(last ? deadline_ : slice);
        lock.lock();
        if (!done && !deadline_.passed() && !cancelled_) continue;
        step_ = nullptr;
        const std::uint64_t one = 1;
        static_cast<void>(::write(fd_, &one, sizeof one));
        changed_.notify_all();
    }
}

}  // namespace rollring::python
