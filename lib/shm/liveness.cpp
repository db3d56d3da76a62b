#include "liveness.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

namespace rollring {

std::uint64_t detail::forks = 0;

namespace {

// All locks of this process, for the fork handler. Never destroyed, because handlers run late.
struct Locks {
    std::mutex mutex;
    std::vector<int> fds;  // -1: free
};

Locks& locks();

void before_fork() {
    locks().mutex.lock();
}
void after_fork_in_parent() {
    locks().mutex.unlock();
}
void after_fork_in_child() {
    for (int& fd : locks().fds) {
        if (fd >= 0) close(fd);
        fd = -1;
    }
    detail::forks++;
    locks().mutex.unlock();
}

Locks& locks() {
    static Locks* const all = [] {
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        return new Locks;
    }();
    return *all;
}

// Made when the library is loaded, not with the first lock: an object without a lock compares the
// generation too, and a fork before the first lock must count.
[[maybe_unused]] const Locks& at_load = locks();

// Requires the mutex.
int keep(int fd) {
    for (std::size_t index = 0; index < locks().fds.size(); index++) {
        if (locks().fds[index] < 0) {
            locks().fds[index] = fd;
            return static_cast<int>(index);
        }
    }
    locks().fds.push_back(fd);
    return static_cast<int>(locks().fds.size()) - 1;
}

// `bytes`: 0 for all from there on.
struct flock lock_of(std::int64_t at, std::int64_t bytes) {
    struct flock request{};
    request.l_type = F_WRLCK;
    request.l_whence = SEEK_SET;
    request.l_start = at;
    request.l_len = bytes;
    return request;
}

// A failed query proves nothing and counts as held, because a false death is worse than a late one.
bool held_by_any(int fd, struct flock request) {
    return fcntl(fd, F_OFD_GETLK, &request) != 0 || request.l_type != F_UNLCK;
}

}  // namespace

Result<std::optional<LifeLock>> LifeLock::take(int fd, LifeByte byte) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd);
    // From here to keep(): a child that another thread forks meanwhile would not know of the
    // descriptor, and would hold the byte as long as it lives.
    const std::scoped_lock lock(locks().mutex);
    const int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (own < 0) {
        return failed(Errc::system, errno,
                      fmt::format("cannot reopen the segment through {}: is /proc "
                                  "mounted?",
                                  path));
    }
    struct flock request = lock_of(byte.at, 1);
    if (fcntl(own, F_OFD_SETLK, &request) == 0) return LifeLock(keep(own), fork_generation());
    const int error = errno;
    close(own);
    if (error == EAGAIN || error == EACCES) return std::optional<LifeLock>{};
    return failed(Errc::system, error, "cannot take a byte lock on the segment");
}

ProcessFd::ProcessFd(Fd fd) : generation_(fork_generation()) {
    const std::scoped_lock lock(locks().mutex);
    if (fd) index_ = keep(fd.get());
    fd_ = fd.release();
}

ProcessFd::ProcessFd(ProcessFd&& other) noexcept
    : index_(std::exchange(other.index_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      generation_(other.generation_) {}

ProcessFd& ProcessFd::operator=(ProcessFd&& other) noexcept {
    std::swap(index_, other.index_);
    std::swap(fd_, other.fd_);
    std::swap(generation_, other.generation_);
    return *this;
}

ProcessFd::~ProcessFd() {
    if (get() < 0) return;
    const std::scoped_lock lock(locks().mutex);
    locks().fds[static_cast<std::size_t>(index_)] = -1;
    close(fd_);
}

int ProcessFd::get() const {
    return generation_ == fork_generation() ? fd_ : -1;
}

bool alive(int fd, LifeByte byte) {
    return held_by_any(fd, lock_of(byte.at, 1));
}

bool anybody_alive(int fd) {
    return held_by_any(fd, lock_of(LifeByte::creation().at + 1, 0));
}

Result<void> MakerProcess::check(std::string_view object) const {
    if (is_this()) return {};
    return refused(Errc::forked,
                   fmt::format("this {} belongs to the process that forked this one: a child opens "
                               "its own",
                               object));
}

bool LifeLock::held() const {
    return index_ >= 0 && generation_ == fork_generation();
}

LifeLock::LifeLock(LifeLock&& other) noexcept
    : index_(std::exchange(other.index_, -1)), generation_(other.generation_) {}

LifeLock& LifeLock::operator=(LifeLock&& other) noexcept {
    std::swap(index_, other.index_);
    std::swap(generation_, other.generation_);
    return *this;
}

LifeLock::~LifeLock() {
    if (!held())
        return;  // in a forked child the handler has closed it, and the index may be reused
    const std::scoped_lock lock(locks().mutex);
    int& fd = locks().fds[static_cast<std::size_t>(index_)];
    close(fd);
    fd = -1;
}

}  // namespace rollring
