#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

namespace rollring::test {

pid_t start_self(const std::vector<std::string>& arguments, const std::string& fault) {
    std::vector<char*> argv{program_invocation_name};
    for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.data()));
    argv.push_back(nullptr);
    std::string plan = "ROLLRING_FAULT=" + fault;
    std::vector<char*> environment{plan.data()};
    for (char** word = environ; *word != nullptr; word++) environment.push_back(*word);
    environment.push_back(nullptr);
    pid_t pid = -1;
    const int error =
        posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environment.data());
    require(error == 0, "cannot start myself: {}", std::generic_category().message(error));
    return pid;
}

#ifdef ROLLRING_COVERAGE
extern "C" void __gcov_dump();
#endif

void leave(int status) {
#ifdef ROLLRING_COVERAGE
    __gcov_dump();
#endif
    _exit(status);
}

void die_with_parent() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == 1) _exit(9);  // it was faster
}

int run_self(int argc, char** argv, const SelfRoles& roles, const SelfRole& otherwise) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (arguments.empty() || !roles.contains(arguments[0])) return otherwise(arguments);
        die_with_parent();
        const SelfRole& role = roles.at(arguments[0]);
        arguments.erase(arguments.begin());
        return role(arguments);
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED (process {}): {}\n", getpid(), failure.what());
        return 1;
    }
}

bool kill_and_collect(pid_t pid) {
    kill(pid, SIGKILL);
    return collect(pid) == 128 + SIGKILL;
}

int collect(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) require(errno == EINTR, "waitpid: {}", errno);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void await_stopped(pid_t pid) {
    int status = 0;
    const pid_t got = waitpid(pid, &status, WUNTRACED);
    require(got == pid && WIFSTOPPED(status), "process {} ended (status {}) instead of stopping",
            pid, status);
    require(state_of(pid) == 'T', "process {} is in state {}", pid, state_of(pid));
}

namespace {

char changed(pid_t pid, int flags) {
    siginfo_t info{};
    const int wanted = WEXITED | WSTOPPED | WNOWAIT | flags;
    while (waitid(P_PID, static_cast<id_t>(pid), &info, wanted) != 0) {
        require(errno == EINTR, "waitid: {}", errno);
    }
    if (info.si_pid == 0) return 'r';
    return info.si_code == CLD_STOPPED ? 's' : 'e';
}

}  // namespace

char look_at(pid_t pid) {
    return changed(pid, WNOHANG);
}

bool is_ending(pid_t pid) {
    if (look_at(pid) == 'e') return true;
    std::ifstream maps(fmt::format("/proc/{}/maps", pid));
    return maps.peek() == std::ifstream::traits_type::eof();
}

char await_end_or_stop(pid_t pid) {
    return changed(pid, 0);
}

bool ended_within(pid_t pid, std::int64_t ns, int fd) {
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    require(pidfd >= 0, "pidfd_open: {}", errno);
    pollfd waits[2] = {{pidfd, POLLIN, 0}, {fd, POLLIN, 0}};
    const timespec timeout{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    ppoll(waits, 2, &timeout, nullptr);
    close(pidfd);
    return (waits[0].revents & POLLIN) != 0;
}

char state_of(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string line;
    std::getline(file, line);
    const auto end = line.rfind(')');
    return end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
}

SharedBytes::SharedBytes(std::size_t bytes) : fd_(memfd_create("test", 0)), bytes_(bytes) {
    require(fd_ >= 0, "memfd_create: {}", errno);
    const int error = ftruncate(fd_, static_cast<off_t>(bytes));  // tidy-ok: not a segment
    require(error == 0, "cannot size the test's own memory: {}", errno);
    map();
}

SharedBytes::SharedBytes(int inherited_fd, std::size_t bytes) : fd_(inherited_fd), bytes_(bytes) {
    map();
}

void SharedBytes::map() {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);  // tidy-ok: ditto
    require(data_ != MAP_FAILED, "cannot map the test's own memory: {}", errno);
}

SharedBytes::~SharedBytes() {
    munmap(data_, bytes_);
    close(fd_);
}

std::string scratch_name(std::string_view what) {
    static std::atomic<int> number{0};
    return fmt::format("test-{}-{}-{}", getpid(), what, number++);
}

ScratchRing::ScratchRing(std::string_view what, const RingOptions& options)
    : name_(scratch_name(what)) {
    // Not three quarters of the memory: some tests look at every byte.
    RingOptions small = options;
    if (!small.spill_bytes) small.spill_bytes = std::uint64_t{256} << 20;
    const auto made = create_ring(name_, small);
    require(made.has_value(), "{}", made ? "" : made.error().to_string());
}

ScratchRing::~ScratchRing() {
    static_cast<void>(remove_ring(name_, true));
}

std::size_t leftovers() {
    const std::string mark = fmt::format("test-{}-", getpid());
    std::size_t count = 0;
    for (const std::string& name : list_rings()) count += name.starts_with(mark) ? 1 : 0;
    for (const std::string& name : list_leftovers()) {
        count += name.find("." + mark) != std::string::npos ? 1 : 0;
    }
    return count;
}

std::uint64_t option(const std::vector<std::string>& arguments, std::string_view name,
                     std::uint64_t otherwise) {
    for (std::size_t i = 0; i + 1 < arguments.size(); i++) {
        if (arguments[i] == name) return std::stoull(arguments[i + 1]);
    }
    return otherwise;
}

Arguments::Arguments(int argc, char** argv, std::string_view usage)
    : words_(argv + 1, argv + argc), usage_(usage) {}

bool Arguments::flag(std::string_view name) {
    return std::erase(words_, name) != 0;
}

std::string Arguments::word(std::string_view name, std::string_view otherwise) {
    const auto at = std::ranges::find(words_, name);
    if (at == words_.end() || at + 1 == words_.end()) return std::string(otherwise);
    std::string value = *(at + 1);
    words_.erase(at, at + 2);
    return value;
}

std::uint64_t Arguments::number(std::string_view name, std::uint64_t otherwise) {
    const std::string text = word(name, std::to_string(otherwise));
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) good_ = false;
    return value;
}

void Arguments::end(bool good) {
    const bool help = flag("--help");
    if (!help && good && good_ && words_.empty()) return;
    fmt::print(help ? stdout : stderr, "usage: {}\n", usage_);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread ends the process
    std::exit(help ? 0 : 2);
}

}  // namespace rollring::test
