#pragma once
// The commands that the program `rollring` has for Atropos, as command.hpp has its own.

#include "cli/commands/command.hpp"

namespace rollring::cli {

Command add_serve_atropos(CLI::App& app);
Command add_run_env(CLI::App& app);

}  // namespace rollring::cli
