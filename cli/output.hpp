#pragma once
// Where the program writes: reports on stdout, and lines for people on stderr.
//
// A report that could not be written is remembered, and the command ends with exit code 1, or with
// 141 if nobody reads the pipe any more (`rollring stat r --watch | head`).

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
[[nodiscard]] bool write_has_failed();
// What a command that ends with `code` ends with, given what became of its writes. Says so if it
// was not the pipe's reader that went away.
[[nodiscard]] int code_after_writes(int code);

}  // namespace rollring::cli
