#pragma once
// The room for groups in a new ring: options of `rollring create` and `rollring demo`.

#include <cstdint>
#include <string>

#include "cli/commands/command.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {

struct SpillOptions {
    std::uint64_t spill_bytes = bytes_not_given;
    std::string overflow_dir;
    std::uint64_t overflow_bytes = bytes_not_given;
};

// --spill-bytes, --overflow, --overflow-bytes; with descriptions, or with a pointer to `rollring
// create`.
void add_spill_options(CLI::App* app, SpillOptions& options, bool described);
void apply(const SpillOptions& options, RingOptions& made);

}  // namespace rollring::cli
