// rollring-recording: the commands of `rollring` for recordings of batches.

#include "cli/commands/program.hpp"

namespace {

using namespace rollring::cli;

constexpr const char* description =
    R"(Recordings of batches: for `rollring record` and `replay`

The program rollring has these commands, and this one does their work.)";

}  // namespace

int main(int argc, char** argv) {
    return run_program({.description = description,
                        .footer = "`rollring --help` has all commands.",
                        .commands = {add_record, add_replay}},
                       argc, argv);
}
