#include "driver.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "rollring/stash_stat.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t silent_ns = 60'000 * ms;  // then a wait has not ended

std::atomic<bool> interrupted{false};

RingOptions stress_ring(const Options& options) {
    return {.lanes = options.producers + (options.hostile ? 1 : 0) + 1,
            .lane_bytes = 128 << 10,
            .soft_bytes = 32 << 10,
            .journal_records = 256,
            .spill_bytes = 4 << 20,
            .group_rows = 4096};
}

// What brings the run forward, of each role.
bool is_success(Kind kind) {
    return kind == Kind::pushed || kind == Kind::acked || kind == Kind::committed ||
           kind == Kind::live || kind == Kind::resumed || kind == Kind::opened;
}

}  // namespace

void catch_interrupts() {
    struct sigaction action{};
    action.sa_handler = [](int) { interrupted = true; };
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
}

std::uint64_t DriverCounts::all_kills() const {
    return std::accumulate(kills.begin(), kills.end(), std::uint64_t{0});
}

Driver::Driver(const Options& options, bool private_shm)
    : options_(options), private_shm_(private_shm), dice_{options.seed}, buffer_(1 << 18) {
    ring_.emplace("stress", stress_ring(options));
    require(pipe(pipe_) == 0, "pipe: {}", errno);
    require(fcntl(pipe_[0], F_SETFD, FD_CLOEXEC) == 0, "fcntl: {}", errno);
    require(fcntl(pipe_[0], F_SETFL, O_NONBLOCK) == 0, "fcntl: {}", errno);
    static_cast<void>(fcntl(pipe_[1], F_SETPIPE_SZ, 1 << 18));
    const auto add = [&](Role role, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; i++) processes_.push_back({.role = role, .slot = i});
    };
    add(Role::trainer, 1);
    add(Role::producer, options.producers);
    add(Role::hostile, options.hostile ? 1 : 0);
    add(Role::publisher, options.subscribers > 0 ? 1 : 0);
    add(Role::subscriber, options.subscribers);
}

Driver::~Driver() {
    for (Process& process : processes_) {
        if (process.pid > 0) kill_and_collect(process.pid);
    }
    if (ring_) remove_dead_channels(ring_->name());
    close(pipe_[0]);
    close(pipe_[1]);
}

void Driver::start(Process& process) {
    process.life = ++lives_;
    by_life_.resize(lives_ + 1);
    by_life_[lives_] = static_cast<std::size_t>(&process - processes_.data());
    oracle_.started(lives_, process.role, process.slot);
    process.pid =
        start_self({"--part", std::string(name(process.role)), ring_->name(), board_.fd(),
                    std::to_string(pipe_[1]), std::to_string(lives_), std::to_string(dice_.next()),
                    std::to_string(process.slot), options_.plant});
    process.said_ns = monotonic_ns();
    process.did_ns = 0;
    process.resume_ns = process.start_ns = 0;
    process.waits = process.words = process.refusals = 0;
    counts_.starts[static_cast<std::size_t>(process.role)]++;
}

void Driver::strike(Process& process) {
    oracle_.killed(process.life);
    kill(process.pid, SIGKILL);
    const int status = collect(std::exchange(process.pid, 0));
    drain();
    const bool own = status == 0 && process.role == Role::producer;  // it was faster
    require(own || status == 128 + SIGKILL, "{} (life {}) ended with status {}", name(process.role),
            process.life, status);
    counts_.kills[static_cast<std::size_t>(process.role)] += own ? 0 : 1;
    const std::uint64_t away = dice_.below(4) == 0 ? dice_.below(30) : 0;
    process.start_ns = monotonic_ns() + static_cast<std::int64_t>(away) * ms;
}

void Driver::stop(Process& process, std::int64_t for_ns) {
    kill(process.pid, SIGSTOP);
    process.resume_ns = monotonic_ns() + for_ns;
    counts_.stops[static_cast<std::size_t>(process.role)]++;
}

void Driver::resume(Process& process) {
    kill(process.pid, SIGCONT);
    process.resume_ns = 0;
    process.said_ns = monotonic_ns();
    if (process.did_ns != 0) process.did_ns = process.said_ns;
}

Driver::Process& Driver::find(Role role) {
    return *std::ranges::find(processes_, role, &Process::role);
}

// Everything that is in the pipe now, and not what others add meanwhile: that has no end.
void Driver::drain() {
    static_assert(sizeof(Head) % 8 == 0);
    int there = 0;
    require(ioctl(pipe_[0], FIONREAD, &there) == 0, "FIONREAD: {}", errno);
    while (there > 0) {
        const ssize_t got = read(pipe_[0], buffer_.data(), buffer_.size());
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return;
        there -= static_cast<int>(got);
        auto bytes = static_cast<std::size_t>(got);
        for (std::size_t at = 0; at < bytes;) {
            Head head{};
            // An entry may be cut by the end of our buffer: the rest is there.
            const auto more = [&](std::size_t wanted) {
                while (at + wanted > bytes) {
                    buffer_.resize(std::max(buffer_.size(), at + wanted));
                    const ssize_t rest =
                        read(pipe_[0], buffer_.data() + bytes, at + wanted - bytes);
                    require(rest > 0 || errno == EINTR || errno == EAGAIN, "half an entry");
                    if (rest > 0) bytes += static_cast<std::size_t>(rest);
                }
            };
            more(sizeof head);
            std::memcpy(&head, buffer_.data() + at, sizeof head);
            more(head.bytes);
            note(buffer_.data() + at);
            at += head.bytes;
        }
    }
}

void Driver::note(const std::byte* entry) {
    Head head{};
    std::memcpy(&head, entry, sizeof head);
    oracle_.take(entry);
    Process& process = processes_.at(by_life_.at(head.life));
    if (process.life != head.life) return;
    const auto role = static_cast<std::size_t>(process.role);
    if (process.words++ > 0) {
        counts_.silence_ns[role] = std::max(counts_.silence_ns[role], head.at_ns - process.said_ns);
    }
    process.said_ns = std::max(process.said_ns, head.at_ns);
    process.waits += head.kind == Kind::waiting ? 1 : 0;
    process.refusals += head.kind == Kind::refused ? 1 : 0;
    if (!is_success(head.kind)) return;
    if (process.did_ns != 0) {
        counts_.pause_ns[role] = std::max(counts_.pause_ns[role], head.at_ns - process.did_ns);
    }
    process.did_ns = std::max(process.did_ns, head.at_ns);
}

void Driver::look_at(Process& process) {
    const std::int64_t now = monotonic_ns();
    if (process.pid == 0) {
        if (!ending_ && now >= process.start_ns) start(process);
        return;
    }
    if (process.resume_ns != 0) {
        if (now >= process.resume_ns) resume(process);
        return;
    }
    if (test::look_at(process.pid) == 'e') {
        const int status = collect(std::exchange(process.pid, 0));
        drain();  // its last words
        require(status == 0 && (ending_ || process.role == Role::producer),
                "{} (life {}) ended with status {}", name(process.role), process.life, status);
        counts_.ended += process.role == Role::producer ? 1 : 0;
        process.start_ns = now;
        return;
    }
    require(now - process.said_ns < silent_ns, "{} (life {}) is silent for {} s: a wait has no end",
            name(process.role), process.life, (now - process.said_ns) / (1000 * ms));
}

void Driver::pump(int timeout_ms) {
    pollfd wait{pipe_[0], POLLIN, 0};
    static_cast<void>(poll(&wait, 1, timeout_ms));
    if (interrupted) throw Interrupted{};
    drain();
    for (Process& process : processes_) look_at(process);
    show();
}

void Driver::wait_for(std::string_view what, const std::function<bool()>& reached) {
    for (const Deadline deadline = patience(); !reached(); pump(2)) {
        require(!deadline.passed(), "in vain: {}", what);
    }
}

void Driver::act() {
    static constexpr std::pair<Role, std::uint64_t> weights[] = {{Role::producer, 45},
                                                                 {Role::trainer, 20},
                                                                 {Role::publisher, 10},
                                                                 {Role::subscriber, 15},
                                                                 {Role::hostile, 10}};
    std::uint64_t roll = dice_.below(100);
    Role role = Role::producer;
    for (const auto& [one, weight] : weights) {
        role = one;
        if (roll < weight) break;
        roll -= weight;
    }
    std::vector<Process*> candidates;
    for (Process& process : processes_) {
        if (process.role == role && process.pid != 0) candidates.push_back(&process);
    }
    if (candidates.empty()) return;
    Process& victim = *candidates[dice_.below(candidates.size())];
    if (dice_.below(6) != 0) return strike(victim);
    if (victim.resume_ns != 0) return;
    const std::uint64_t longest = dice_.below(10) == 0 ? 400 : 30;
    stop(victim, static_cast<std::int64_t>(1 + dice_.below(longest)) * ms);
}

bool Driver::over() const {
    const auto ran = static_cast<double>(monotonic_ns() - started_ns_) * 1e-9;
    return ran >= options_.seconds ||
           (options_.kills != 0 && counts_.all_kills() >= options_.kills);
}

void Driver::run() {
    started_ns_ = monotonic_ns();
    for (Process& process : processes_) start(process);
    std::int64_t next_ns = started_ns_;
    std::int64_t next_look_ns = started_ns_;
    std::int64_t next_fill_ns = started_ns_ + 1000 * ms;
    while (!over()) {
        const std::int64_t now = monotonic_ns();
        if (now >= next_ns) {
            act();
            next_ns = now + static_cast<std::int64_t>(dice_.below(12'000'000));
        }
        if (now >= next_look_ns) {
            look_at_account();
            next_look_ns = now + 50 * ms;
        }
        if (options_.fills && now >= next_fill_ns) {
            dice_.below(2) == 0 || !private_shm_ ? fill_ring() : fill_shm();
            next_fill_ns = monotonic_ns() + 1500 * ms;
        }
        pump(1);
    }
    finish();
    counts_.wall_ns = monotonic_ns() - started_ns_;
}

// P5, from outside.
void Driver::look_at_account() {
    const auto stat = stat_stash(ring_->name());
    if (!stat) {  // it maps the ring: memory may be short, nothing else
        require(stat.error().code == Errc::not_enough_shared_memory, "stat_stash: {}",
                stat.error().to_string());
        return;
    }
    if (!stat->account_whole) return;
    counts_.looks++;
    require(stat->account.conserved(),
            "from outside: accepted {} != shipped {} + dropped {} + held {} + leased {}",
            stat->account.accepted.records, stat->account.shipped.records,
            stat->account.dropped_total().records, stat->account.held.records,
            stat->account.leased.records);
}

}  // namespace rollring::test
