// rollring-recording: the commands of `rollring` for recordings of batches.

#include "cli/commands/program.hpp"

namespace {

using namespace rollring::cli;

constexpr const char* description =
    R"(Recordings of batches: for `rollring replay`

The program rollring has this command, and this one does its work.)";

}  // namespace

int main(int argc, char** argv) {
    return run_program({.description = description,
                        .footer = "`rollring --help` has all commands.",
                        .commands = {add_replay}},
                       argc, argv);
}
