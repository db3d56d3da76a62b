#pragma once
// The common part of the programs `rollring` and `rollring-serve`. The second one has the commands
// that serve HTTP, for Boost.Beast compiles for long: `rollring` becomes it, with the same
// arguments, and it is nobody else's business.

#include <string>
#include <vector>

#include "cli/commands/command.hpp"

namespace rollring::cli {

struct Program {
    const char* description;
    const char* footer;
    std::vector<Command (*)(CLI::App&)> commands;
};

// All of main(); returns the exit code.
int run_program(const Program& program, int argc, char** argv);
// Of what stands in this program's folder.
std::string path_beside(const std::string& name);
// This process becomes the program `beside`, which stands in this one's folder, with the arguments
// of run_program(). Returns only if that failed, or an interrupt has come.
int become_program(const char* beside);

}  // namespace rollring::cli
