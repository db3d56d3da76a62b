#pragma once
// A thread of the library's own, in a process whose signals are not ours.

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace rollring {

// Starts it, without signals: those are for the caller's threads. A thread's own faults still reach
// the process's handlers, as those of crash reporters. 0, or an errno.
template <class Work>
[[nodiscard]] int start_quiet_thread(std::thread& thread, Work work) {
    sigset_t most;
    sigset_t before;
    sigfillset(&most);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
        sigdelset(&most, fault);
    }
    pthread_sigmask(SIG_SETMASK, &most, &before);
    int error = 0;
    try {
        thread = std::thread(std::move(work));
    } catch (const std::system_error& refusal) {
        error = refusal.code().value();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

}  // namespace rollring
