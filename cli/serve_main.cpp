// rollring-serve: the commands of `rollring` that serve HTTP.

#include "cli/commands/program.hpp"
#include "integrations/atropos/commands/atropos_commands.hpp"

namespace {

using namespace rollring::cli;

constexpr const char* description =
    R"(Serve rings over HTTP: for `rollring serve-atropos` and `rollring metrics`

The program rollring has these commands, and this one does their work.)";

}  // namespace

int main(int argc, char** argv) {
    return run_program({.description = description,
                        .footer = "`rollring --help` has all commands.",
                        .commands = {add_serve_atropos, add_metrics}},
                       argc, argv);
}
