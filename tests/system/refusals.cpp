#include "refusals.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>

namespace rollring::test {
namespace {

struct Kind {
    std::string_view name;
    std::vector<int> errnos;
};

const std::array<Kind, calls_count>& kinds() {
    static const std::array<Kind, calls_count> all{{
        {"open", {EMFILE, ENFILE, ENOMEM, EACCES, EINTR}},
        {"shm_open", {EMFILE, ENFILE, ENOMEM, EACCES, ENOSPC, EINTR}},
        {"shm_unlink", {EACCES, EPERM, EBUSY}},
        {"ftruncate", {EINTR, EIO, EFBIG, EPERM}},
        {"fallocate", {EINTR, EIO, ENOSPC, EOPNOTSUPP}},
        {"posix_fallocate", {EINTR, EIO, ENOSPC, EFBIG, EOPNOTSUPP}},
        {"mmap", {ENOMEM, EACCES, EAGAIN, ENFILE, EPERM}},
        {"fcntl", {ENOLCK, EAGAIN, EACCES, EINTR, EPERM}},
        {"fstat", {ENOMEM, EOVERFLOW}},
        {"pread", {EIO, EINTR}},
        {"statvfs", {EIO, ENOMEM, EINTR, ENOSYS}},
        {"getrandom", {EINTR, EAGAIN, ENOSYS}},
        {"futex", {EINTR, EAGAIN, ENOMEM}},
        {"memfd_create", {EMFILE, ENFILE, ENOMEM, EPERM}},
        {"eventfd", {EMFILE, ENFILE, ENODEV, ENOMEM}},
        {"pthread_create", {EAGAIN, EPERM}},
        {"socket", {EMFILE, ENFILE, ENOBUFS, ENOMEM, EACCES}},
        {"bind", {EACCES, ENOMEM, EADDRINUSE, EROFS}},
        {"listen", {EADDRINUSE, EOPNOTSUPP}},
        {"connect", {EAGAIN, EACCES, EINTR, EPROTOTYPE}},
        {"accept4", {EMFILE, ENFILE, ENOMEM, ENOBUFS, EINTR, ECONNABORTED}},
        {"getsockopt", {ENOBUFS, ENOMEM, EPERM}},
        {"sendmsg", {ENOBUFS, ENOMEM, EINTR, EPIPE, ETOOMANYREFS, EAGAIN}},
        {"recvmsg", {ENOMEM, EINTR, ECONNRESET, EAGAIN}},
        {"poll", {EINTR, ENOMEM, EINVAL}},
        {"flock", {EINTR, ENOLCK}},
        {"mkdir", {EACCES, ENOSPC, EROFS}},
        {"rmdir", {EBUSY, EACCES}},
        {"unlinkat", {EBUSY, EACCES}},
        {"fchmodat", {EPERM, EIO, EROFS}},
    }};
    return all;
}

Refusal plan;
std::atomic<bool> armed{false};
std::array<std::atomic<std::uint32_t>, calls_count> made;
std::atomic<std::uint32_t> refused{0};

// The errno to fail with, or 0.
int refusal_of(Call call) {
    if (!armed.load()) return 0;
    const std::uint32_t number = ++made[static_cast<std::size_t>(call)];
    if (call != plan.call || plan.at == 0) return 0;
    if (number != plan.at && !(plan.for_good && number > plan.at)) return 0;
    refused++;
    return plan.error;
}

// The C library's own function of that name.
template <class Function>
Function* real(const char* name) {
    void* found = dlsym(RTLD_NEXT, name);
    if (found == nullptr) std::abort();
    return reinterpret_cast<Function*>(found);
}

// Fails as the armed refusal demands, or makes the call.
template <class Return = int, class Function, class... Values>
Return pass(Call call, Function* function, Values... values) {
    if (const int error = refusal_of(call); error != 0) {
        errno = error;
        return Return(-1);
    }
    return static_cast<Return>(function(values...));
}

mode_t mode_of(int flags, va_list list) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace

std::string_view name(Call call) {
    return kinds().at(static_cast<std::size_t>(call)).name;
}

Call call_named(std::string_view wanted) {
    std::size_t i = 0;
    while (i < calls_count && kinds()[i].name != wanted) i++;
    return static_cast<Call>(i);
}

const std::vector<int>& errnos_of(Call call) {
    return kinds().at(static_cast<std::size_t>(call)).errnos;
}

void refuse(const Refusal& refusal) {
    plan = refusal;
    for (auto& count : made) count = 0;
    refused = 0;
    armed = true;
}

void let_all_pass() {
    armed = false;
}

std::uint32_t calls_made(Call call) {
    return made.at(static_cast<std::size_t>(call)).load();
}

std::uint32_t calls_refused() {
    return refused.load();
}

}  // namespace rollring::test

// Replaces the C library's functions.
using rollring::test::Call;
using rollring::test::pass;
using rollring::test::real;

extern "C" {

int open(const char* path, int flags, ...) {
    static auto* const next = real<int(const char*, int, ...)>("open");
    va_list list;
    va_start(list, flags);
    const mode_t mode = rollring::test::mode_of(flags, list);
    va_end(list);
    return pass(Call::open, next, path, flags, mode);
}

int shm_open(const char* name, int flags, mode_t mode) {
    static auto* const next = real<int(const char*, int, mode_t)>("shm_open");
    return pass(Call::shm_open, next, name, flags, mode);
}

int shm_unlink(const char* name) {
    static auto* const next = real<int(const char*)>("shm_unlink");
    return pass(Call::shm_unlink, next, name);
}

int ftruncate(int fd, off_t bytes) noexcept {
    static auto* const next = real<int(int, off_t)>("ftruncate");
    return pass(Call::ftruncate, next, fd, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    static auto* const next = real<int(int, int, off_t, off_t)>("fallocate");
    return pass(Call::fallocate, next, fd, mode, offset, bytes);
}

int posix_fallocate(int fd, off_t offset, off_t bytes) {
    static auto* const next = real<int(int, off_t, off_t)>("posix_fallocate");
    const int error = rollring::test::refusal_of(Call::posix_fallocate);
    return error != 0 ? error : next(fd, offset, bytes);
}

// NOLINTNEXTLINE(readability-function-size): the arguments of the system call
void* mmap(void* at, size_t bytes, int access, int flags, int fd, off_t offset) noexcept {
    static auto* const next = real<void*(void*, size_t, int, int, int, off_t)>("mmap");
    if (const int error = rollring::test::refusal_of(Call::mmap); error != 0) {
        errno = error;
        return MAP_FAILED;
    }
    return next(at, bytes, access, flags, fd, offset);
}

int fcntl(int fd, int command, ...) {
    static auto* const next = real<int(int, int, ...)>("fcntl");
    va_list list;
    va_start(list, command);
    void* const argument = va_arg(list, void*);
    va_end(list);
    return pass(Call::fcntl, next, fd, command, argument);
}

int fstat(int fd, struct stat* status) noexcept {
    static auto* const next = real<int(int, struct stat*)>("fstat");
    return pass(Call::fstat, next, fd, status);
}

ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
    static auto* const next = real<ssize_t(int, void*, size_t, off_t)>("pread");
    return pass<ssize_t>(Call::pread, next, fd, to, bytes, offset);
}

int statvfs(const char* path, struct statvfs* status) noexcept {
    static auto* const next = real<int(const char*, struct statvfs*)>("statvfs");
    return pass(Call::statvfs, next, path, status);
}

ssize_t getrandom(void* to, size_t bytes, unsigned flags) {
    static auto* const next = real<ssize_t(void*, size_t, unsigned)>("getrandom");
    return pass<ssize_t>(Call::getrandom, next, to, bytes, flags);
}

long syscall(long number, ...) noexcept {
    static auto* const next = real<long(long, ...)>("syscall");
    va_list list;
    va_start(list, number);
    std::array<long, 6> values{};
    for (long& value : values) value = va_arg(list, long);
    va_end(list);
    const auto [a, b, c, d, e, f] = values;
    if (number != SYS_futex) return next(number, a, b, c, d, e, f);
    return pass<long>(Call::futex, next, number, a, b, c, d, e, f);
}

int memfd_create(const char* name, unsigned flags) noexcept {
    static auto* const next = real<int(const char*, unsigned)>("memfd_create");
    return pass(Call::memfd_create, next, name, flags);
}

int eventfd(unsigned count, int flags) noexcept {
    static auto* const next = real<int(unsigned, int)>("eventfd");
    return pass(Call::eventfd, next, count, flags);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
    static auto* const next =
        real<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
    const int error = rollring::test::refusal_of(Call::pthread_create);
    return error != 0 ? error : next(thread, attributes, body, argument);
}

int socket(int domain, int type, int protocol) noexcept {
    static auto* const next = real<int(int, int, int)>("socket");
    return pass(Call::socket, next, domain, type, protocol);
}

int bind(int fd, const sockaddr* address, socklen_t bytes) noexcept {
    static auto* const next = real<int(int, const sockaddr*, socklen_t)>("bind");
    return pass(Call::bind, next, fd, address, bytes);
}

int listen(int fd, int most) noexcept {
    static auto* const next = real<int(int, int)>("listen");
    return pass(Call::listen, next, fd, most);
}

int connect(int fd, const sockaddr* address, socklen_t bytes) {
    static auto* const next = real<int(int, const sockaddr*, socklen_t)>("connect");
    return pass(Call::connect, next, fd, address, bytes);
}

int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
    static auto* const next = real<int(int, sockaddr*, socklen_t*, int)>("accept4");
    return pass(Call::accept4, next, fd, address, bytes, flags);
}

int getsockopt(int fd, int level, int option, void* value, socklen_t* bytes) noexcept {
    static auto* const next = real<int(int, int, int, void*, socklen_t*)>("getsockopt");
    return pass(Call::getsockopt, next, fd, level, option, value, bytes);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
    static auto* const next = real<ssize_t(int, const msghdr*, int)>("sendmsg");
    return pass<ssize_t>(Call::sendmsg, next, fd, message, flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
    static auto* const next = real<ssize_t(int, msghdr*, int)>("recvmsg");
    return pass<ssize_t>(Call::recvmsg, next, fd, message, flags);
}

int poll(pollfd* fds, nfds_t count, int timeout_ms) {
    static auto* const next = real<int(pollfd*, nfds_t, int)>("poll");
    return pass(Call::poll, next, fds, count, timeout_ms);
}

int flock(int fd, int operation) noexcept {
    static auto* const next = real<int(int, int)>("flock");
    return pass(Call::flock, next, fd, operation);
}

int mkdir(const char* path, mode_t mode) noexcept {
    static auto* const next = real<int(const char*, mode_t)>("mkdir");
    return pass(Call::mkdir, next, path, mode);
}

int rmdir(const char* path) noexcept {
    static auto* const next = real<int(const char*)>("rmdir");
    return pass(Call::rmdir, next, path);
}

int unlinkat(int fd, const char* path, int flags) noexcept {
    static auto* const next = real<int(int, const char*, int)>("unlinkat");
    return pass(Call::unlinkat, next, fd, path, flags);
}

int fchmodat(int fd, const char* path, mode_t mode, int flags) noexcept {
    static auto* const next = real<int(int, const char*, mode_t, int)>("fchmodat");
    return pass(Call::fchmodat, next, fd, path, mode, flags);
}

}  // extern "C"
