// The life of one process of the run: how it starts, is struck or strikes itself, and ends.

#include <algorithm>
#include <csignal>
#include <utility>

#include "driver.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t silent_ns = 60'000 * ms;  // then a wait has not ended
constexpr std::int64_t dying_ns = 10'000 * ms;   // from the end of its locks to that of a process
constexpr int killed_status = 128 + SIGKILL;
constexpr int bus_status = 128 + SIGBUS;
constexpr int exit_status = 86;  // of the action "exit"

}  // namespace

void Driver::start(Process& process) {
    process.life = ++lives_;
    by_life_.resize(lives_ + 1);
    by_life_[lives_] = static_cast<std::size_t>(&process - processes_.data());
    oracle_.started(lives_, process.role, process.index);
    note_stop(process);
    process.fault =
        arming_ && !lives_on(process.role) ? draw_fault(process.role, dice_) : std::nullopt;
    process.pid =
        start_self({"--part", std::string(name(process.role)), ring_->name(), board_.fd(),
                    std::to_string(pipe_[1]), std::to_string(lives_), std::to_string(dice_.next()),
                    std::to_string(process.index), options_.plant},
                   process.fault ? process.fault->plan() : std::string());
    process.killed = false;
    process.said_ns = monotonic_ns();
    process.did_ns = 0;
    process.resume_ns = process.start_ns = 0;
    process.waits = process.words = process.refusals = 0;
    counts_.starts[static_cast<std::size_t>(process.role)]++;
    counts_.armed += process.fault ? 1 : 0;
}

// Others go on while it dies: it is collected when it has.
void Driver::strike(Process& process) {
    if (test::look_at(process.pid) == 'e') return;  // it was faster
    oracle_.killed(process.life);
    note_end(process);
    kill(process.pid, SIGKILL);
    process.killed = true;
    process.resume_ns = 0;
}

void Driver::collect_ended(Process& process) {
    const int status = collect(std::exchange(process.pid, 0));
    const auto role = static_cast<std::size_t>(process.role);
    const std::string action = process.fault ? process.fault->action : "";
    const bool by_us = process.killed && status == killed_status;
    const bool at_point = !by_us && ((action == "kill" && status == killed_status) ||
                                     (action == "exit" && status == exit_status));
    // It may call itself closed in its page: its memory is given back, and it goes on writing there
    // while /dev/shm is full.
    const bool own_fault = process.role == Role::hostile && status == bus_status;
    if (own_fault) oracle_.killed(process.life);
    if (own_fault || at_point) note_end(process);
    if (at_point) {
        oracle_.killed(process.life);
        counts_.at_points[action][process.fault->point]++;
    }
    if (status == killed_status && (by_us || at_point)) {
        counts_.kills[role]++;
        counts_.struck[role] += at_point ? 1 : 0;
        counts_.worked[role] += process.did_ns != 0 ? 1 : 0;
    }
    process.start_ns = monotonic_ns();
    process.done = ending_ && (!at_point || process.role == Role::hostile);
    if (by_us || at_point || own_fault) {
        const std::uint64_t away = dice_.below(4) == 0 ? dice_.below(30) : 0;
        process.start_ns += static_cast<std::int64_t>(away) * ms;
        return;
    }
    heed_interrupt();  // Ctrl-C is for children too, until they ignore it
    drain();           // its last words
    require(status == 0 && (ending_ || process.role == Role::producer),
            "{} (life {}) ended with status {}{}", name(process.role), process.life, status,
            process.fault ? ", armed with " + process.fault->plan() : "");
    counts_.ended += process.role == Role::producer ? 1 : 0;
}

// Another process says that this life is over. It may have struck itself, and we have not looked
// yet: its locks are gone a moment before it has ended.
void Driver::collect_if_struck(std::uint64_t life) {
    if (life >= by_life_.size()) return;
    Process& process = processes_[by_life_[life]];
    if (process.life != life || process.pid == 0 || process.killed) return;
    if (!process.fault || process.fault->action == "stop") return;
    if (ended_within(process.pid, dying_ns)) collect_ended(process);
}

void Driver::stop(Process& process, std::int64_t for_ns) {
    kill(process.pid, SIGSTOP);
    process.resume_ns = monotonic_ns() + for_ns;
    counts_.stops[static_cast<std::size_t>(process.role)]++;
    note_stop(process);
}

std::int64_t Driver::some_while_ns() {
    const std::uint64_t longest = dice_.below(10) == 0 ? 400 : 30;
    return static_cast<std::int64_t>(1 + dice_.below(longest)) * ms;
}

void Driver::resume(Process& process) {
    note_stop(process);
    kill(process.pid, SIGCONT);
    process.resume_ns = 0;
    process.said_ns = monotonic_ns();
    if (process.did_ns != 0) process.did_ns = process.said_ns;
}

void Driver::look_at(Process& process) {
    const std::int64_t now = monotonic_ns();
    if (process.pid == 0) {
        if (!process.done && now >= process.start_ns && !stays_away(process.role)) start(process);
        return;
    }
    if (process.resume_ns != 0) {
        if (now >= process.resume_ns) resume(process);
        return;
    }
    const char state = test::look_at(process.pid);
    if (state == 'e') return collect_ended(process);
    if (state == 's' && process.fault && process.fault->action == "stop") {
        counts_.at_points["stop"][process.fault->point]++;
        counts_.stops[static_cast<std::size_t>(process.role)]++;
        process.fault.reset();
        process.resume_ns = now + some_while_ns();
    }
    require(now - process.said_ns < silent_ns, "{} (life {}) is silent for {} s: a wait has no end",
            name(process.role), process.life, (now - process.said_ns) / (1000 * ms));
}

}  // namespace rollring::test
