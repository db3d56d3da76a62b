#include "cli/terminal/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace rollring::cli {
namespace {

int first_failed = 0;  // the first one's errno

// False, with errno, if not all of it is the system's now.
bool print_to(std::FILE* file, std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
}

}  // namespace

void guard_standard_streams() {
    // Opened for the other direction: a use fails with EBADF, as it would have.
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (::fcntl(fd, F_GETFD) >= 0) continue;
        static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
    static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
}

void print(std::string_view text) {
    if (!print_to(stdout, text)) remember_failed_write(errno);
}

void show(const std::string& text, bool again) {
    print((again && ::isatty(STDOUT_FILENO) != 0 ? "\x1b[H\x1b[2J" : "") + text);
}

void print_report_on_stderr(std::string_view text) {
    if (!print_to(stderr, text)) remember_failed_write(errno);
}

void note(std::string_view text) {
    // On a terminal, over the bar if one is drawn.
    const char* start = ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "";
    static_cast<void>(print_to(stderr, fmt::format("{}rollring: {}\n", start, text)));
}

void remember_failed_write(int error) {
    if (first_failed == 0) first_failed = error == 0 ? EIO : error;
}

int failed_write() {
    return first_failed;
}

}  // namespace rollring::cli
