// rollring-inspect: the commands of `rollring` that look at rings from outside.

#include "cli/commands/program.hpp"

namespace {

using namespace rollring::cli;

constexpr const char* description =
    R"(Look at rings: for `rollring ls`, `stat`, `doctor`, `groups` and `weights`

The program rollring has these commands, and this one does their work.)";

}  // namespace

int main(int argc, char** argv) {
    return run_program({.description = description,
                        .footer = "`rollring --help` has all commands.",
                        .commands = {add_ls, add_stat, add_doctor, add_groups, add_weights}},
                       argc, argv);
}
