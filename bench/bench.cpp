#include "bench.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

#include "cli/terminal/quantity.hpp"
#include "rounding.hpp"

namespace bench {
namespace {

void pin(int cpu, bool realtime) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    // Best effort: a figure is printed beside its CPUs.
    if (cpu != any_cpu) sched_setaffinity(0, sizeof set, &set);
    const sched_param priority{.sched_priority = 1};
    if (realtime && sched_setscheduler(0, SCHED_RR, &priority) != 0) {
        fail(fmt::format("--realtime: the system refused SCHED_RR: {}",
                         std::generic_category().message(errno)));
    }
}

// A container seldom has the right: the figures are then those of the usual scheduler.
bool grants_realtime() {
    const int policy = sched_getscheduler(0);
    sched_param before{};
    sched_getparam(0, &before);
    const sched_param priority{.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_RR, &priority) != 0) {
        fmt::print(stderr,
                   "rollring-bench: --realtime has no effect: the system refused SCHED_RR, which "
                   "needs CAP_SYS_NICE (docker run --cap-add SYS_NICE): {}\n",
                   std::generic_category().message(errno));
        return false;
    }
    return sched_setscheduler(0, policy, &before) == 0;
}

pid_t start(int cpu, bool realtime, Board& board, const Side& side) {
    const pid_t pid = fork();
    if (pid < 0) fail("fork failed");
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
        pin(cpu, realtime);
        side(board);
    } catch (const Failure& failure) {  // the frames below are the parent's
        board.give_up(failure.what());
    }
    _exit(0);
}

std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        const auto colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) {
            return line.substr(colon + 2);
        }
    }
    return "unknown CPU";
}

}  // namespace

void fail(const std::string& message) {
    throw Failure(message);
}

std::int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm("yield");
#endif
}

std::vector<int> Cpus::allowed() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> found;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    }
    return found;
}

Cpus Cpus::choose(const std::vector<int>& wanted, bool realtime) {
    realtime = realtime && grants_realtime();
    if (wanted.size() == 2) return {wanted[0], wanted[1], realtime};
    if (!wanted.empty()) fail("--cpus takes two numbers: the producer's and the consumer's");
    const std::vector<int> found = allowed();
    if (found.empty()) return {};
    if (found.size() < 2)
        return {found[0], found[0], false};  // two spinners would block each other
    // CPUs that follow each other are often two threads of one core: take every other one.
    return {found[0], found.size() >= 4 ? found[2] : found[1], realtime};
}

SharedBytes::SharedBytes(std::size_t bytes) : bytes_(bytes) {
    // tidy-ok: the limit and the results need memory that is not a ring
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,  // tidy-ok: see above
                    MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) fail(fmt::format("{} bytes of shared memory: no room", bytes));
    data_ = static_cast<std::byte*>(at);
}

SharedBytes::~SharedBytes() {
    munmap(data_, bytes_);
}

void Board::meet(std::uint32_t sides) {
    ready.fetch_add(1);
    while (ready.load() < sides) relax();
}

void Board::give_up(const std::string& why) {
    if (problem[0] == 0) std::strncpy(problem.data(), why.c_str(), problem.size() - 1);
    _exit(1);
}

Turn::Turn()
    : file_(open(fmt::format("/tmp/rollring-bench.{}.lock", getuid()).c_str(),
                 O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    while (file_ >= 0 && flock(file_, LOCK_EX) != 0 && errno == EINTR && !interrupted()) {
    }
}

Turn::~Turn() {
    if (file_ >= 0) close(file_);
}

std::string run_all(const std::vector<Task>& tasks, bool realtime, Board& board,
                    std::int64_t limit_s) {
    const Turn turn;
    new (&board) Board{};
    static_cast<void>(std::fflush(nullptr));
    std::vector<pid_t> pids;
    pids.reserve(tasks.size());
    for (const Task& task : tasks) pids.push_back(start(task.cpu, realtime, board, task.side));
    const std::int64_t deadline_ns = now_ns() + limit_s * 1'000'000'000;
    std::string problem;
    for (std::size_t left = pids.size(); left > 0; usleep(500)) {
        const bool well = problem.empty();
        for (pid_t& pid : pids) {
            int status = 0;
            if (pid == 0 || waitpid(pid, &status, WNOHANG) != pid) continue;
            pid = 0;
            left--;
            if (status == 0 || !problem.empty()) continue;
            problem = board.problem.data();
            if (problem.empty()) problem = fmt::format("a side ended with status {}", status);
        }
        if (problem.empty() && interrupted()) problem = "interrupted";
        if (problem.empty() && now_ns() > deadline_ns) {
            problem = fmt::format("no end within {} s", limit_s);
        }
        if (!well || problem.empty()) continue;
        for (const pid_t pid : pids) {
            if (pid != 0) kill(pid, SIGKILL);
        }
    }
    return interrupted() ? "interrupted" : problem;
}

std::string run_pair(const Cpus& cpus, Board& board, const Side& producer, const Side& consumer) {
    return run_all({{cpus.consumer, consumer}, {cpus.producer, producer}}, cpus.realtime, board);
}

double line_ns(const Cpus& cpus) {
    constexpr std::uint64_t bursts = 41;
    constexpr std::uint64_t trips = 200;
    struct Lines {
        alignas(128) std::atomic<std::uint64_t> there;
        alignas(128) std::atomic<std::uint64_t> back;
        alignas(128) std::array<double, bursts> burst_ns;
    };
    const SharedBytes memory(sizeof(Board) + sizeof(Lines));
    Board& board = *memory.at<Board>();
    Lines& lines = *memory.at<Lines>(round_up(sizeof(Board), 128));
    if (!cpus.distinct()) return 0;
    const auto ping = [&](Board& both) {
        both.meet();
        std::uint64_t turn = 0;
        for (double& burst : lines.burst_ns) {
            const std::int64_t began_ns = now_ns();
            for (std::uint64_t i = 0; i < trips; i++) {
                lines.there.store(++turn, std::memory_order_release);
                while (lines.back.load(std::memory_order_acquire) != turn) relax();
            }
            burst = static_cast<double>(now_ns() - began_ns) / (2.0 * trips);
        }
    };
    const auto pong = [&](Board& both) {
        both.meet();
        for (std::uint64_t turn = 1; turn <= bursts * trips; turn++) {
            while (lines.there.load(std::memory_order_acquire) != turn) relax();
            lines.back.store(turn, std::memory_order_release);
        }
    };
    if (!run_pair(cpus, board, ping, pong).empty()) return 0;
    return Spread::of({lines.burst_ns.begin(), lines.burst_ns.end()}).median;
}

Progress::Progress(std::size_t steps)
    : shown_(isatty(STDERR_FILENO) == 1), steps_(steps), began_ns_(now_ns()) {}

Progress::~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
}

void Progress::step(std::string_view what) {
    if (shown_) {
        constexpr std::size_t width = 24;
        const std::size_t filled = steps_ != 0 ? done_ * width / steps_ : width;
        const double spent_s = static_cast<double>(now_ns() - began_ns_) / 1e9;
        const double left_s =
            done_ != 0 ? spent_s / static_cast<double>(done_) * static_cast<double>(steps_ - done_)
                       : 0;
        fmt::print(stderr, "\r\033[K[{:#<{}}{:.<{}}] {}/{} {} ETA {:.0f} s", "", filled, "",
                   width - filled, done_, steps_, what, left_s);
        static_cast<void>(std::fflush(stderr));
    }
    done_ = std::min(done_ + 1, steps_);
}

Json machine(const Cpus& cpus) {
    utsname system{};
    uname(&system);
    return {{"cpu", cpu_model()},
            {"cpus", sysconf(_SC_NPROCESSORS_ONLN)},
            {"l2_bytes", sysconf(_SC_LEVEL2_CACHE_SIZE)},
            {"l3_bytes", sysconf(_SC_LEVEL3_CACHE_SIZE)},
            {"kernel", system.release},
            {"compiler", __VERSION__},
            {"pinned", {cpus.producer, cpus.consumer}}};
}

std::uint64_t parse_bytes(const std::string& text) {
    const auto bytes = rollring::cli::parse_bytes(text);
    if (bytes) return *bytes;
    fail(fmt::format("'{}' is not a number of bytes: write 4096, 64KiB, 4MiB or 1GiB", text));
}

}  // namespace bench
