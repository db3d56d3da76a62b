#include "cli/terminal/output.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "cli/terminal/colour.hpp"
#include "cli/terminal/interrupts.hpp"

namespace rollring::cli {
namespace {

int first_failed = 0;  // the first one's errno

void print_to(int descriptor, std::string_view text) {
    if (const int error = write_all(descriptor, text); error != 0) remember_failed_write(error);
}

// Prints a line on stderr, over the progress bar if one is drawn. A lost line is not a failure.
void line_on_stderr(std::string_view text) {
    const char* start = moves_cursor(STDERR_FILENO) ? "\r\x1b[K" : "";
    static_cast<void>(write_all(STDERR_FILENO, fmt::format("{}rollring: {}\n", start, text)));
}

bool would_block(int error) {
    return error == EAGAIN || error == EWOULDBLOCK;
}

bool wait_for(int descriptor, short events) {
    pollfd wanted{descriptor, events, 0};
    return ::poll(&wanted, 1, -1) >= 0 || (errno == EINTR && !interrupted());
}

}  // namespace

int write_all(int descriptor, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
        if (done > 0) {
            bytes.remove_prefix(static_cast<std::size_t>(done));
            continue;
        }
        if (done == 0) return EIO;
        const bool again =
            would_block(errno) ? wait_for(descriptor, POLLOUT) : errno == EINTR && !interrupted();
        if (!again) return errno;
    }
    return 0;
}

bool wait_for_input(int descriptor, int error) {
    return would_block(error) && wait_for(descriptor, POLLIN);
}

void guard_standard_streams() {
    // Opened for the other direction: its use fails with EBADF, as before.
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (::fcntl(fd, F_GETFD) >= 0) continue;
        static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
    static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
}

void print(std::string_view text) {
    print_to(STDOUT_FILENO, text);
}

void show(const std::string& text, bool again) {
    print((again && moves_cursor(STDOUT_FILENO) ? "\x1b[H\x1b[2J" : "") + text);
}

void print_report_on_stderr(std::string_view text) {
    print_to(STDERR_FILENO, text);
}

void note(std::string_view text) {
    line_on_stderr(text);
}

void warn(std::string_view text) {
    line_on_stderr(painted(Style::warning, text, STDERR_FILENO));
}

void complain(std::string_view text) {
    const std::size_t kind = std::min(text.find(':'), text.size());
    line_on_stderr(painted(Style::error, text.substr(0, kind), STDERR_FILENO) +
                   std::string(text.substr(kind)));
}

void remember_failed_write(int error) {
    if (first_failed == 0) first_failed = error == 0 ? EIO : error;
}

int failed_write() {
    return first_failed;
}

}  // namespace rollring::cli
