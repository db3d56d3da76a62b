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

namespace detail {

// Runs it from its first stop to its second one, and stops its threads there. False: it ended.
inline bool run_to_second_stop(pid_t pid, std::vector<pid_t>& threads) {
    int status = 0;
    waitpid(pid, &status, 0);
    require(WIFSTOPPED(status), "it stops before the threads");
    require(ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACECLONE) == 0, "its threads");
    for (pid_t one = pid;;) {
        require(ptrace(PTRACE_CONT, one, nullptr, nullptr) == 0, "it runs");
        do {
            one = waitpid(-1, &status, 0);
            if (one == pid && !WIFSTOPPED(status)) return false;
        } while (!WIFSTOPPED(status));
        if (one == pid && WSTOPSIG(status) == SIGSTOP) break;
        if (one != pid) threads.push_back(one);  // born stopped
    }
    for (const pid_t one : threads) {
        require(tgkill(pid, one, SIGSTOP) == 0, "a thread stops");
        require(waitpid(one, &status, 0) == one && WIFSTOPPED(status), "it has stopped");
    }
    return true;
}

inline bool end(pid_t pid, bool killed) {
    kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(-1, &status, 0) != pid || WIFSTOPPED(status)) {
    }
    return killed;
}

}  // namespace detail

// The same of a process with threads, each of which is stepped. It stops itself before it starts
// them, and where the steps begin. No other child of ours runs meanwhile.
inline bool kill_at_store_of_any(pid_t pid, std::span<const std::byte> bytes, int at) {
    std::vector<pid_t> threads;
    if (!detail::run_to_second_stop(pid, threads)) return false;
    const auto step = [](pid_t one) {
        require(ptrace(PTRACE_SINGLESTEP, one, nullptr, nullptr) == 0, "single step");
    };
    for (const pid_t one : threads) step(one);
    std::vector<std::byte> before(bytes.begin(), bytes.end());
    for (pid_t thread = pid;;) {
        step(thread);
        int status = 0;
        do {
            thread = waitpid(-1, &status, 0);
            if (thread == pid && !WIFSTOPPED(status)) return false;
        } while (!WIFSTOPPED(status));
        if (std::memcmp(before.data(), bytes.data(), bytes.size()) != 0) {
            std::memcpy(before.data(), bytes.data(), bytes.size());
            if (--at == 0) return detail::end(pid, true);
        }
        if (WSTOPSIG(status) == SIGSTOP && thread == pid) return detail::end(pid, false);
    }
}

}  // namespace rollring::test
