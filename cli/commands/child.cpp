#include "cli/commands/child.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

namespace rollring::cli {
namespace {

// The path, so that `ps` shows our name; after an update of the program only the link still works.
std::string own_path() {
    std::array<char, 4096> path{};
    const ssize_t bytes = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
    if (bytes > 0 && ::access(path.data(), X_OK) == 0) return path.data();
    return "/proc/self/exe";
}

}  // namespace

Result<Child> Child::start(std::string title, const std::vector<std::string>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return failed(Errc::system, errno, "pipe for " + title);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string name = "rollring";
    std::vector<std::string> words = arguments;
    std::vector<char*> argv{name.data()};
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_t pid = -1;
    const int error =
        ::posix_spawn(&pid, own_path().c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error != 0) {
        ::close(ends[0]);
        return failed(
            Errc::system, error,
            fmt::format("cannot start {}: {}", title, std::generic_category().message(error)));
    }
    static_cast<void>(::fcntl(ends[0], F_SETFL, O_NONBLOCK));
    Child child;
    child.title_ = std::move(title);
    child.pid_ = pid;
    child.pipe_ = ends[0];
    return child;
}

Child::Child(Child&& other) noexcept
    : title_(std::move(other.title_)),
      pid_(std::exchange(other.pid_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      exit_code_(other.exit_code_),
      output_(std::move(other.output_)) {}

Child::~Child() {
    if (running()) {
        signal(SIGKILL);
        reap();
    }
    if (pipe_ >= 0) ::close(pipe_);
}

void Child::look() {
    std::array<char, 4096> block{};
    while (pipe_ >= 0) {
        const ssize_t got = ::read(pipe_, block.data(), block.size());
        if (got > 0) {
            output_.append(block.data(), static_cast<std::size_t>(got));
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else if (got < 0 && errno == EAGAIN) {
            return;
        } else {
            ::close(pipe_);  // it has closed its standard output: it is ending
            pipe_ = -1;
            reap();
        }
    }
}

void Child::signal(int number) const {
    if (running()) ::kill(pid_, number);
}

void Child::reap() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
}

void wait_for_any(const std::vector<Child>& children, int timeout_ms) {
    std::vector<pollfd> pipes;
    for (const auto& child : children) {
        if (child.pipe() >= 0) pipes.push_back({child.pipe(), POLLIN, 0});
    }
    static_cast<void>(::poll(pipes.data(), pipes.size(), timeout_ms));
}

}  // namespace rollring::cli
