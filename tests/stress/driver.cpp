#include "driver.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "rollring/stat.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {
namespace {

std::atomic<bool> interrupted{false};

RingOptions stress_ring(const Options& options) {
    // A lane in quarantine is free again when the last group that has records there is over.
    return {.lanes = options.producers + (options.hostile ? 16 : 0) + 1,
            .lane_bytes = stress_lane_bytes,
            .soft_bytes = 32 << 10,
            .journal_records = 256,
            .spill_bytes = stress_spill_bytes,
            .group_rows = 4096};
}

// The words that bring the run forward, of each role.
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

std::uint64_t DriverCounts::points_struck() const {
    std::set<std::string_view> points;
    for (const auto& [action, counts] : at_points) {
        for (const auto& [point, count] : counts) points.insert(point);
    }
    return points.size();
}

Driver::Driver(const Options& options, bool private_shm)
    : options_(options), private_shm_(private_shm), dice_{options.seed}, buffer_(1 << 18) {
    ring_.emplace("stress", stress_ring(options));
    require(pipe(pipe_) == 0, "pipe: {}", errno);
    require(fcntl(pipe_[0], F_SETFD, FD_CLOEXEC) == 0, "fcntl: {}", errno);
    require(fcntl(pipe_[0], F_SETFL, O_NONBLOCK) == 0, "fcntl: {}", errno);
    static_cast<void>(fcntl(pipe_[1], F_SETPIPE_SZ, 1 << 18));
    const auto add = [&](Role role, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; i++) processes_.push_back({.role = role, .index = i});
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

Driver::Process& Driver::find(Role role) {
    return *std::ranges::find(processes_, role, &Process::role);
}

// Everything that is in the pipe now, and not the words that others add meanwhile: those have no
// end.
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
    if (const std::uint64_t dead = Oracle::taken_for_dead(entry)) collect_if_struck(dead);
    oracle_.take(entry);
    Process& process = processes_.at(by_life_.at(head.life));
    if (process.life != head.life) return;
    if (process.runs()) note_progress(process, entry);
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

void Driver::heed_interrupt() {
    if (interrupted) throw Interrupted{};
}

void Driver::pump(int timeout_ms) {
    pollfd wait{pipe_[0], POLLIN, 0};
    static_cast<void>(poll(&wait, 1, timeout_ms));
    heed_interrupt();
    counts_.wall_ns = monotonic_ns() - started_ns_;
    const std::int64_t until = monotonic_ns();
    drain();
    for (Process& process : processes_) look_at(process);
    look_at_progress(until);
    show();
}

void Driver::wait_for(std::string_view what, const std::function<bool()>& reached) {
    for (const Deadline deadline = patience(); !reached(); pump(2)) {
        require(!deadline.passed(), "in vain: {}", what);
    }
}

void Driver::act() {
    static constexpr std::pair<Role, std::uint64_t> weights[] = {{Role::producer, 47},
                                                                 {Role::trainer, 20},
                                                                 {Role::publisher, 12},
                                                                 {Role::subscriber, 18},
                                                                 {Role::hostile, 3}};
    std::uint64_t roll = dice_.below(100);
    Role role = Role::producer;
    for (const auto& [one, weight] : weights) {
        role = one;
        if (roll < weight) break;
        roll -= weight;
    }
    std::vector<Process*> candidates;
    for (Process& process : processes_) {
        if (process.role == role && process.runs()) candidates.push_back(&process);
    }
    if (candidates.empty() || spared(role)) return;
    Process& victim = *candidates[dice_.below(candidates.size())];
    if (dice_.below(6) != 0) return strike(victim);
    if (victim.resume_ns == 0) stop(victim, some_while_ns());
}

bool Driver::over() const {
    const auto ran = static_cast<double>(monotonic_ns() - started_ns_) * 1e-9;
    return ran >= options_.seconds ||
           (options_.kills != 0 && counts_.all_kills() >= options_.kills);
}

void Driver::run() {
    started_ns_ = monotonic_ns();
    take_turns();
    for (Process& process : processes_) look_at(process);
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
            look_at_shm();
            next_look_ns = now + 50 * ms;
        }
        take_turns();
        if (options_.fills && !spares_producers() && now >= next_fill_ns) {
            dice_.below(2) == 0 || !private_shm_ ? fill_ring() : fill_shm();
            next_fill_ns = monotonic_ns() + 1500 * ms;
        }
        pump(1);
    }
    finish();
}

// The memory of all of them together must not grow.
void Driver::look_at_shm() {
    struct statvfs space{};
    if (!private_shm_ || statvfs("/dev/shm", &space) != 0) return;
    const std::uint64_t used = (space.f_blocks - space.f_bfree) * space.f_frsize;
    counts_.shm_peak_bytes = std::max(counts_.shm_peak_bytes, used);
}

// P5, from outside.
void Driver::look_at_account() {
    const auto stat = stat_stash(ring_->name());
    if (!stat) {  // it maps the ring: memory may be short, nothing else
        require(stat.error().code == Errc::not_enough_shared_memory, "stat_stash: {}",
                stat.error().to_string());
        return;
    }
    oracle_.still_open(stat->groups);
    if (!stat->account_whole) return;
    counts_.looks++;
    require(stat->account.conserved(),
            "from outside: accepted {} != shipped {} + dropped {} + held {} + leased {}",
            stat->account.accepted.records, stat->account.shipped.records,
            stat->account.dropped_total().records, stat->account.held.records,
            stat->account.leased.records);
}

}  // namespace rollring::test
