#pragma once
// Where the program writes: reports on stdout, and lines for people on stderr.
//
// A report that could not be written is remembered: the command's exit code tells it
// (cli/commands/command.hpp).

#include <string>
#include <string_view>

namespace rollring::cli {

// For main(), before anything is opened: a descriptor among 0 to 2 that is closed fails when it is
// used, instead of being the next file's; a closed pipe is an error and not a signal.
void guard_standard_streams();

void print(std::string_view text);               // a report, or a part of it, on stdout
void show(const std::string& text, bool again);  // likewise; again: on a cleared terminal
void print_report_on_stderr(std::string_view text);
// One line on stderr for people; not an error.
void note(std::string_view text);

// What somebody else who writes to stdout met.
void remember_failed_write(int error);
[[nodiscard]] int failed_write();  // errno of the first that failed; 0 if none did

}  // namespace rollring::cli
