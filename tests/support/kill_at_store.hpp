#pragma once
// Kills a process at a store into memory that it shares with us, found by single steps (ptrace).

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "support/in_child.hpp"

namespace rollring::test {

inline pid_t start_stepped(const std::function<int()>& body) {
    return start_child([&] {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        return body();
    });
}

// Kills the process, which has stopped itself, at the store number `at` into the bytes, from 1 on.
// False if it ended, or stopped itself again, before. `between` runs now and then, for the
// conditions that the process waits for.
inline bool kill_at_store(pid_t pid, std::span<const std::byte> bytes, int at,
                          const std::function<void()>& between) {
    int status = 0;
    waitpid(pid, &status, 0);
    require(WIFSTOPPED(status), "it stops before the steps");
    std::vector<std::byte> before(bytes.begin(), bytes.end());
    for (std::uint64_t steps = 1;; steps++) {
        require(ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr) == 0, "single step");
        waitpid(pid, &status, 0);
        if (WIFEXITED(status) || WIFSIGNALED(status)) return false;
        if (WSTOPSIG(status) == SIGSTOP) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return false;
        }
        if (steps % 100'000 == 0) between();
        if (std::memcmp(before.data(), bytes.data(), bytes.size()) == 0) continue;
        std::memcpy(before.data(), bytes.data(), bytes.size());
        if (--at != 0) continue;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return true;
    }
}

}  // namespace rollring::test
