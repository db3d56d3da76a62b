#pragma once
// Runs a piece of a test in a forked process, for effects that cannot be undone: limits, death,
// namespaces.

#include <fmt/core.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include "process.hpp"

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
    leave(status);
}

template <class Body>
int in_child(Body body) {
    return collect(start_child(body));
}

}  // namespace rollring::test
