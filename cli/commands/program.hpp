#pragma once
// The common part of the programs `rollring`, `rollring-inspect`, `rollring-recording` and
// `rollring-serve`.

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
// The path of a file in this program's folder.
std::string path_beside(const std::string& name);
// This process becomes the program `beside`, which lies in the same folder, with the arguments of
// run_program(). Returns only if that failed, or after an interrupt.
int become_program(const char* beside);

}  // namespace rollring::cli
