#pragma once
// A thread of the library's own, in a process whose signals are not ours.

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace rollring {

// Starts it, without signals: those are for the caller's threads. 0, or an errno.
template <class Work>
[[nodiscard]] int start_quiet_thread(std::thread& thread, Work work) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
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
