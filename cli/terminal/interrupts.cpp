#include "cli/terminal/interrupts.hpp"

#include <poll.h>

#include <atomic>
#include <csignal>

namespace rollring::cli {
namespace {

std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
    caught_signal.store(number);
}

// The terminal is gone; under nohup that must not matter, and SIGHUP stays ignored.
void handle_all(void (*handler)(int), int flags) {
    struct sigaction action{};
    action.sa_handler = handler;
    action.sa_flags = flags;
    static_cast<void>(::sigemptyset(&action.sa_mask));
    static_cast<void>(::sigaction(SIGINT, &action, nullptr));
    static_cast<void>(::sigaction(SIGTERM, &action, nullptr));
    struct sigaction before{};
    const bool known = ::sigaction(SIGHUP, nullptr, &before) == 0;
    if (known && before.sa_handler != SIG_IGN) {
        static_cast<void>(::sigaction(SIGHUP, &action, nullptr));
    }
}

}  // namespace

void catch_interrupts() {
    handle_all(on_signal, static_cast<int>(SA_RESETHAND));  // a second one kills
}

void release_interrupts() {
    handle_all(SIG_DFL, 0);
}

bool interrupted() {
    return caught_signal.load() != 0;
}

int interrupt_exit() {
    return 128 + caught_signal.load();
}

void pause_ms(std::int64_t ms) {
    if (!interrupted()) static_cast<void>(::poll(nullptr, 0, static_cast<int>(ms)));
}

}  // namespace rollring::cli
