#pragma once
// `rollring weights --rollback`: asks the engines of a channel to leave its committed version.

#include <cstdint>
#include <string>

#include "cli/commands/command.hpp"

namespace rollring::cli {

struct RollbackCommand {
    bool wanted = false;
    std::int64_t timeout_ms = 10'000;
};

// The option --rollback, and the one that goes with it.
CLI::Option* add_rollback(CLI::App* app, RollbackCommand& command);
// Asks, prints the answers, and returns the exit code.
int ask_back(const std::string& ring, const RollbackCommand& command, bool json);

}  // namespace rollring::cli
