#pragma once
// Kills its own process right behind a store into a ring's pages, at full speed elsewhere: the
// pages are read-only, and a store that faults is let through in a single step.

#include <fmt/core.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "process.hpp"

namespace rollring::test {

// One for a process. Stores are counted over all threads; of two threads that store at the same
// moment, the second may pass uncounted. x86-64 alone.
class StoreTrap {
  public:
    // Bytes [from, to) of the ring's object, in all that is mapped of it by now. `at` counts
    // from 1.
    static void arm(const std::string& ring, std::uint64_t from, std::uint64_t to, int at) {
        StoreTrap& trap = self();
        trap.left_ = at;
        trap.find(fmt::format("/dev/shm/rollring.{}.{}", getuid(), ring), from, to);
        require(trap.count_ != 0, "{} is mapped", ring);
        struct sigaction action{};
        action.sa_flags = SA_SIGINFO;
        sigfillset(&action.sa_mask);
        action.sa_sigaction = faulted;
        require(sigaction(SIGSEGV, &action, nullptr) == 0, "a handler of faults");
        action.sa_sigaction = stepped;
        require(sigaction(SIGTRAP, &action, nullptr) == 0, "a handler of steps");
        trap.protect(PROT_READ);
    }

  private:
    struct Range {
        std::uintptr_t from;
        std::uintptr_t to;
    };
    static constexpr greg_t trap_flag = 0x100;

    static StoreTrap& self() {
        static StoreTrap one;
        return one;
    }

    void find(const std::string& path, std::uint64_t from, std::uint64_t to) {
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            if (!line.ends_with(' ' + path) || line.find(" rw") == std::string::npos) continue;
            std::istringstream words(line);
            std::uint64_t begin = 0;
            std::uint64_t end = 0;
            std::uint64_t offset = 0;
            std::string permissions;
            char dash = 0;
            words >> std::hex >> begin >> dash >> end >> permissions >> offset;
            const std::uint64_t first = std::max(from, offset);
            const std::uint64_t last = std::min(to, offset + (end - begin));
            if (first >= last) continue;
            require(count_ < ranges_.size(), "room for a range");
            ranges_.at(count_++) = {begin + (first - offset), begin + (last - offset)};
        }
    }

    void protect(int access) const {
        for (std::size_t i = 0; i < count_; i++) {
            const auto [from, to] = ranges_[i];
            // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of /proc/self/maps
            if (mprotect(reinterpret_cast<void*>(from), to - from, access) != 0) _exit(125);
        }
    }

    [[nodiscard]] bool holds(std::uintptr_t at) const {
        for (std::size_t i = 0; i < count_; i++) {
            if (at >= ranges_[i].from && at < ranges_[i].to) return true;
        }
        return false;
    }

    static void faulted(int /*number*/, siginfo_t* info, void* context) {
        StoreTrap& trap = self();
        if (!trap.holds(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
            static_cast<void>(signal(SIGSEGV, SIG_DFL));  // and it faults again
            return;
        }
        while (trap.stepping_.test_and_set(std::memory_order_acquire)) {
        }
        trap.protect(PROT_READ | PROT_WRITE);
        static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= trap_flag;
    }

    static void stepped(int /*number*/, siginfo_t* /*info*/, void* context) {
        StoreTrap& trap = self();
        if (--trap.left_ == 0) static_cast<void>(kill(getpid(), SIGKILL));
        static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
        trap.protect(PROT_READ);
        trap.stepping_.clear(std::memory_order_release);
    }

    std::array<Range, 32> ranges_{};
    std::size_t count_ = 0;
    std::atomic_flag stepping_;  // between a fault and its step
    int left_ = 0;               // guarded by it
};

}  // namespace rollring::test
