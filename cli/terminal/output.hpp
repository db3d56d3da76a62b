#pragma once
// The program's output: reports on stdout, and lines for people on stderr.
//
// A report that could not be written is remembered, and shows in the command's exit code
// (cli/commands/command.hpp).

#include <string>
#include <string_view>

namespace rollring::cli {

// Writes all of `bytes`. 0, or the errno of the failure; EINTR at an interrupt. An inherited pipe
// or terminal may be non-blocking, because the flag belongs to the open file and not to the
// process: then this waits.
[[nodiscard]] int write_all(int descriptor, std::string_view bytes);
// After a read that failed with `error`: if it failed for lack of input, waits for input and
// returns true.
[[nodiscard]] bool wait_for_input(int descriptor, int error);

// For main(), before anything is opened: the use of a closed descriptor among 0 to 2 fails, instead
// of hitting the next opened file; a closed pipe is an error and not a signal.
void guard_standard_streams();

void print(std::string_view text);               // a report, or a part of it, on stdout
void show(const std::string& text, bool again);  // likewise; again: on a cleared terminal
void print_report_on_stderr(std::string_view text);
// One line on stderr for people: news, a warning or an error; the text before the first colon names
// the kind.
void note(std::string_view text);
void warn(std::string_view text);
void complain(std::string_view text);

// Notes a failure of another writer to stdout.
void remember_failed_write(int error);
[[nodiscard]] int failed_write();  // errno of the first failure; 0 if there was none

}  // namespace rollring::cli
