#pragma once
// Where the program writes: reports on stdout, and lines for people on stderr.
//
// A report that could not be written is remembered: the command's exit code tells it
// (cli/commands/command.hpp).

#include <string>
#include <string_view>

namespace rollring::cli {

// Writes all of `bytes`. 0, or the errno of the failure; EINTR at an interrupt. An inherited pipe
// or terminal may be non-blocking, for the flag belongs to the open file and not to the process:
// then it is waited for.
[[nodiscard]] int write_all(int descriptor, std::string_view bytes);
// After a read that failed with `error`: waits for input, and returns true, if that was the reason.
[[nodiscard]] bool wait_for_input(int descriptor, int error);

// For main(), before anything is opened: a descriptor among 0 to 2 that is closed fails when it is
// used, instead of being the next file's; a closed pipe is an error and not a signal.
void guard_standard_streams();

void print(std::string_view text);               // a report, or a part of it, on stdout
void show(const std::string& text, bool again);  // likewise; again: on a cleared terminal
void print_report_on_stderr(std::string_view text);
// One line on stderr for people: news, a warning, or an error, of which what comes before the first
// colon names the kind.
void note(std::string_view text);
void warn(std::string_view text);
void complain(std::string_view text);

// What somebody else who writes to stdout met.
void remember_failed_write(int error);
[[nodiscard]] int failed_write();  // errno of the first that failed; 0 if none did

}  // namespace rollring::cli
