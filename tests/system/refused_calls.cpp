// Every system call of the library fails once: the first of its kind, the second, the third, until
// a run meets no failure (SQLite's way); then the same, with every later call failing too. Each
// time the operation still succeeds or ends in a named error, loses nothing, leaks nothing, and
// works when it is tried again.
//
//   refused_calls [--once 1] [--floor N]
//   refused_calls --only CASE CALL ERRNO AT FOR_GOOD      one run, as a failure names it

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "refusal_cases.hpp"
#include "refusals.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint32_t calls_most = 20'000;  // of one kind, in one operation

struct Tally {
    std::atomic<std::uint64_t> refused[calls_count];  // runs in which this call was
    std::atomic<std::uint64_t> errors;                // runs that ended in a named error
    std::atomic<std::uint64_t> done;   // runs in which the operation succeeded nevertheless
    std::atomic<std::uint64_t> again;  // runs in which it succeeded when tried again
    Refusal last;                      // the child's last one
};

// Counts that must not have grown in a process afterwards.
struct Belongings {
    std::size_t fds = 0;
    std::size_t mappings = 0;
    std::size_t threads = 0;
    std::size_t objects = 0;
    std::size_t sockets = 0;
    bool operator==(const Belongings&) const = default;
};

std::size_t entries_of(const std::string& folder, std::string_view with = {}) {
    std::size_t count = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        count += entry.path().filename().string().find(with) != std::string::npos ? 1 : 0;
    }
    return count;
}

Belongings belongings() {
    Belongings now;
    now.fds = entries_of("/proc/self/fd");
    now.threads = entries_of("/proc/self/task");
    now.objects = leftovers();
    now.sockets = entries_of(fmt::format("/dev/shm/rollring-weights.{}", getuid()),
                             fmt::format("test-{}-", getpid()));
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        now.mappings += line.find("rollring.") != std::string::npos ? 1 : 0;
    }
    return now;
}

// A thread that was joined is in /proc until the kernel is through with it; a leaked one stays.
Belongings at_rest(std::size_t threads) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    Belongings now = belongings();
    while (now.threads > threads && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
        now = belongings();
    }
    return now;
}

std::string text_of(const Refusal& refusal) {
    return fmt::format("{} {} {} {}", name(refusal.call), strerrorname_np(refusal.error),
                       refusal.at, refusal.for_good ? 1 : 0);
}

void check_error(const Error& error, const Refusal& refusal) {
    require(name(error.code) != "unknown" && !error.message.empty(), "an error without a name");
    // A refusal at the other end comes over the socket, without its errno.
    const bool peers = error.message.find("(the publisher: ") != std::string::npos ||
                       (refusal.call == Call::getsockopt && error.system_errno == 0);
    require(error.code != Errc::system || peers || error.system_errno == refusal.error,
            "the error has errno {}: {}", error.system_errno, error.to_string());
}

// One run. False if nothing was refused.
bool run_once(const NamedCase& which, const Refusal& refusal, Tally& tally) {
    const Belongings before = belongings();
    tally.last = refusal;
    std::uint32_t refused = 0;
    {
        const auto made = which.make();
        refuse(refusal);
        const auto acted = made->act();
        refused = calls_refused();
        let_all_pass();
        require(acted || refused > 0, "it fails without a refusal: {}",
                acted ? "" : acted.error().to_string());
        if (!acted) check_error(acted.error(), refusal);
        made->check(acted, refusal.call);
        made->again();
        tally.again += refused > 0 ? 1 : 0;
        if (refused > 0) (acted ? tally.done : tally.errors)++;
    }
    if (refused > 0) tally.refused[static_cast<std::size_t>(refusal.call)]++;
    const Belongings after = at_rest(before.threads);
    require(after == before,
            "left behind: {} descriptors, {} mappings, {} threads, {} objects, {} sockets",
            after.fds - before.fds, after.mappings - before.mappings,
            after.threads - before.threads, after.objects - before.objects,
            after.sockets - before.sockets);
    return refused > 0;
}

// All places where this call is made, one after the other.
int run_all_places(const NamedCase& which, Refusal refusal, Tally& tally) {
    static_cast<void>(run_once(which, {}, tally));  // objects that are made once and kept
    // The calls of a loop are alike, so later ones are sampled.
    for (refusal.at = 1; run_once(which, refusal, tally); refusal.at += 1 + refusal.at / 16) {
        require(refusal.at < calls_most, "no end of calls");
    }
    return 0;
}

class Campaign {
  public:
    explicit Campaign(bool once_only) : once_only_(once_only) {}

    void run(const NamedCase& which) {
        const std::vector<std::uint32_t> made = count(which);
        std::string used;
        const std::uint64_t before = tally_->again.load();
        for (std::size_t i = 0; i < calls_count; i++) {
            if (made[i] == 0) continue;
            const auto call = static_cast<Call>(i);
            used += fmt::format(" {}={}", name(call), made[i]);
            for (const int error : errnos_of(call)) {
                strike(which, {call, error, 1, false});
                // Calls do not survive a signal that never ends or an address that is always taken.
                if (!once_only_ && error != EINTR) strike(which, {call, error, 1, true});
            }
        }
        fmt::print("{:20} refused={}  calls:{}\n", which.name, tally_->again.load() - before, used);
        static_cast<void>(std::fflush(stdout));
    }
    // True if all runs passed.
    bool report(std::uint64_t floor) const {
        std::uint64_t sum = 0;
        std::uint64_t never = 0;
        for (std::size_t i = 0; i < calls_count; i++) {
            sum += tally_->refused[i].load();
            if (tally_->refused[i].load() > 0) continue;
            never++;
            fmt::print("never refused: {}\n", name(static_cast<Call>(i)));
        }
        fmt::print(
            "calls={} refused={} named_errors={} done_all_the_same={} done_again={} "
            "failures={} leftovers={}\n",
            calls_count - never, sum, tally_->errors.load(), tally_->done.load(),
            tally_->again.load(), failures_, leftovers());
        return failures_ == 0 && never == 0 && sum >= floor && leftovers() == 0;
    }

  private:
    // How often each call is made where nothing is refused.
    std::vector<std::uint32_t> count(const NamedCase& which) {
        const Shared<std::atomic<std::uint32_t>[calls_count]> counts;
        const int status = in_child([&] {
            const auto made = which.make();
            refuse({});
            const auto acted = made->act();
            let_all_pass();
            for (std::size_t i = 0; i < calls_count; i++) {
                (*counts.operator->())[i] = calls_made(static_cast<Call>(i));
            }
            require_done(acted, "without a refusal");
            made->check(acted, Call::count);
            made->again();
            return 0;
        });
        if (status != 0) {
            fmt::print("FAILED {}: status {} without a refusal\n", which.name, status);
            failures_++;
        }
        std::vector<std::uint32_t> all;
        for (const auto& one : *counts.operator->()) all.push_back(one.load());
        return all;
    }

    // Runs in a process of its own, because it may crash or hang.
    void strike(const NamedCase& which, const Refusal& refusal) {
        const pid_t pid =
            start_child([&] { return run_all_places(which, refusal, *tally_.operator->()); });
        const bool ended = ended_within(pid, 60'000'000'000);
        if (!ended) kill(pid, SIGKILL);
        const int status = collect(pid);
        if (ended && status == 0) return;
        failures_++;
        fmt::print("FAILED {}: refused_calls --only {} {}\n",
                   ended ? fmt::format("with status {}", status) : "to end", which.name,
                   text_of(tally_->last));
        static_cast<void>(std::fflush(stdout));
    }

    bool once_only_;
    Shared<Tally> tally_;
    std::uint64_t failures_ = 0;
};

std::vector<NamedCase> all_cases() {
    std::vector<NamedCase> all = ring_cases();
    for (NamedCase& one : stash_cases()) all.push_back(std::move(one));
    return all;
}

int run_only(const std::vector<std::string>& words) {
    int error = 1;
    while (error < 200 &&
           (strerrorname_np(error) == nullptr || words.at(3) != strerrorname_np(error)))
        error++;
    const Refusal refusal{call_named(words.at(2)), error,
                          static_cast<std::uint32_t>(std::stoul(words.at(4))), words.at(5) == "1"};
    for (const NamedCase& one : all_cases()) {
        if (one.name != words.at(1)) continue;
        Tally tally{};
        static_cast<void>(run_once(one, {}, tally));
        fmt::print("{}\n", run_once(one, refusal, tally) ? "refused" : "never refused");
        return 0;
    }
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (!arguments.empty() && arguments[0] == "--only") return run_only(arguments);
        Campaign campaign(option(arguments, "--once", 0) != 0);
        for (const NamedCase& one : all_cases()) campaign.run(one);
        return campaign.report(option(arguments, "--floor", 1)) ? 0 : 1;
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        return 1;
    }
}
