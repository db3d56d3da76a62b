#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "cli/command.hpp"

namespace rollring::cli {
namespace {

int failed_write = 0;  // the first one's errno

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
    if (failed_write == 0) failed_write = error == 0 ? EIO : error;
}

bool write_has_failed() {
    return failed_write != 0;
}

int code_after_writes(int code) {
    if (failed_write == 0) return code;
    if (failed_write == EPIPE) return code == exit_ok ? exit_closed_pipe : code;
    const int told = fail(Error{Errc::system, failed_write, "cannot write to standard output"});
    return code == exit_ok ? told : code;
}

}  // namespace rollring::cli
