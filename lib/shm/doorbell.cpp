#include "doorbell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace rollring {

void futex_sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline) {
    const std::int64_t left_ns = std::min(deadline.at_ns - monotonic_ns(), sleep_max_ns);
    if (left_ns <= 0) return;
    const timespec timeout{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr,
            0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

void spin_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");  // tidy-ok: an instruction, not a qualifier
#endif
}

}  // namespace rollring
