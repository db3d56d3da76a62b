#pragma once
// Runs a piece of a test in a forked process, for what cannot be undone: limits, death, namespaces.

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

namespace rollring::test {

constexpr int skipped = 77;

// The child's pid. `body` returns its exit status; an exception is printed and gives 1.
template <class Body>
pid_t start_child(Body body) {
    static_cast<void>(std::fflush(stdout));
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 1;
    try {
        status = body();
    } catch (const std::exception& failure) {
        fmt::print(stderr, "in a child: {}\n", failure.what());
    }
    static_cast<void>(std::fflush(stdout));
    static_cast<void>(std::fflush(stderr));
    _exit(status);
}

// Its exit status, or 128 + signal.
inline int end_of(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

template <class Body>
int in_child(Body body) {
    return end_of(start_child(body));
}

}  // namespace rollring::test
