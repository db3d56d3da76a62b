#pragma once
// A system that refuses: one call of the library, the n-th of its kind, fails with an errno of our
// choice. The functions in refusals.cpp replace the C library's in this program and in its
// libraries, librollring.so included.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rollring::test {

enum class Call : std::uint8_t {
    open,
    shm_open,
    shm_unlink,
    ftruncate,
    fallocate,
    posix_fallocate,
    mmap,
    fcntl,
    fstat,
    pread,
    statvfs,
    getrandom,
    futex,
    memfd_create,
    eventfd,
    pthread_create,
    socket,
    bind,
    listen,
    connect,
    accept4,
    getsockopt,
    sendmsg,
    recvmsg,
    poll,
    flock,
    mkdir,
    rmdir,
    unlinkat,
    fchmodat,
    count,
};
constexpr std::size_t calls_count = static_cast<std::size_t>(Call::count);

std::string_view name(Call call);
Call call_named(std::string_view name);
// The errors that its manual page lists, as far as the library's use of it can meet them.
const std::vector<int>& errnos_of(Call call);

struct Refusal {
    Call call = Call::count;
    int error = 0;
    std::uint32_t at = 0;   // the first that fails, from 1; 0: none, they are only counted
    bool for_good = false;  // and all after it
};

// From here on calls of all threads are counted and refused, as told. Counts start at 0.
void refuse(const Refusal& refusal);
// And no more.
void let_all_pass();
// Since refuse().
std::uint32_t calls_made(Call call);
std::uint32_t calls_refused();

}  // namespace rollring::test
