#include "liveness.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

namespace rollring {

std::uint64_t detail::forks = 0;

namespace {

// All locks of this process, so that the fork handler finds them. Never destroyed: handlers run
// late.
struct Held {
    std::mutex mutex;
    std::vector<int> fds;  // -1: free
};

Held& held();

void before_fork() {
    held().mutex.lock();
}
void after_fork_in_parent() {
    held().mutex.unlock();
}
void after_fork_in_child() {
    for (int& fd : held().fds) {
        if (fd >= 0) close(fd);
        fd = -1;
    }
    detail::forks++;
    held().mutex.unlock();
}

Held& held() {
    static Held* const all = [] {
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        return new Held;
    }();
    return *all;
}

// With the mutex held.
int keep(int fd) {
    for (std::size_t slot = 0; slot < held().fds.size(); slot++) {
        if (held().fds[slot] < 0) {
            held().fds[slot] = fd;
            return static_cast<int>(slot);
        }
    }
    held().fds.push_back(fd);
    return static_cast<int>(held().fds.size()) - 1;
}

struct flock one_byte(LifeByte byte) {
    struct flock request{};
    request.l_type = F_WRLCK;
    request.l_whence = SEEK_SET;
    request.l_start = byte.at;
    request.l_len = 1;
    return request;
}

}  // namespace

Result<std::optional<LifeLock>> LifeLock::take(int fd, LifeByte byte) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd);
    // From here to keep(): a child that another thread forks meanwhile would not know of the
    // descriptor, and hold the byte for as long as it lives.
    const std::scoped_lock lock(rollring::held().mutex);
    const int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (own < 0) {
        return std::unexpected(Error{Errc::system, errno,
                                     fmt::format("cannot reopen the segment through {}: is /proc "
                                                 "mounted?",
                                                 path)});
    }
    struct flock request = one_byte(byte);
    if (fcntl(own, F_OFD_SETLK, &request) == 0) return LifeLock(keep(own), fork_generation());
    const int error = errno;
    close(own);
    if (error == EAGAIN || error == EACCES) return std::optional<LifeLock>{};
    return std::unexpected(Error{Errc::system, error, "cannot take a byte lock on the segment"});
}

ProcessFd::ProcessFd(Fd fd) : generation_(fork_generation()) {
    const std::scoped_lock lock(held().mutex);
    if (fd) slot_ = keep(fd.get());
    fd_ = fd.release();
}

ProcessFd::ProcessFd(ProcessFd&& other) noexcept
    : slot_(std::exchange(other.slot_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      generation_(other.generation_) {}

ProcessFd& ProcessFd::operator=(ProcessFd&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(fd_, other.fd_);
    std::swap(generation_, other.generation_);
    return *this;
}

ProcessFd::~ProcessFd() {
    if (get() < 0) return;
    const std::scoped_lock lock(held().mutex);
    held().fds[static_cast<std::size_t>(slot_)] = -1;
    close(fd_);
}

int ProcessFd::get() const {
    return generation_ == fork_generation() ? fd_ : -1;
}

bool alive(int fd, LifeByte byte) {
    struct flock request = one_byte(byte);
    // A failed query proves nothing: say alive, for a false death is worse than a late one.
    return fcntl(fd, F_OFD_GETLK, &request) != 0 || request.l_type != F_UNLCK;
}

bool LifeLock::held() const {
    return slot_ >= 0 && generation_ == fork_generation();
}

LifeLock::LifeLock(LifeLock&& other) noexcept
    : slot_(std::exchange(other.slot_, -1)), generation_(other.generation_) {}

LifeLock& LifeLock::operator=(LifeLock&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(generation_, other.generation_);
    return *this;
}

LifeLock::~LifeLock() {
    if (!held()) return;  // in a forked child the handler has closed it, and the slot may be reused
    const std::scoped_lock lock(rollring::held().mutex);
    int& fd = rollring::held().fds[static_cast<std::size_t>(slot_)];
    close(fd);
    fd = -1;
}

}  // namespace rollring
