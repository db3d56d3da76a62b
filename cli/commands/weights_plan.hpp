#pragma once
// `rollring weights --plan`: the bytes that move between two layouts, without a ring.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/command.hpp"

namespace rollring::cli {

struct PlanQuestion {
    // Of the trainer, then of the engine: a file of WeightLayout::to_bytes(), or a folder of such
    // files, one for each rank.
    std::vector<std::string> layouts;
    std::vector<std::uint32_t> devices;         // of the trainer's ranks; empty: rank r on device r
    std::vector<std::uint32_t> engine_devices;  // likewise
    std::uint32_t tensors = 10;                 // to name: those with the most bytes
    bool json = false;
};

// The option --plan, and those that go with it.
CLI::Option* add_plan(CLI::App* app, PlanQuestion& question);
// Prints the plan, and returns the exit code.
int show_plan(const PlanQuestion& question);

}  // namespace rollring::cli
