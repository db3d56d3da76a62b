#pragma once
// `rollring consume --group-size`: the trainer's loop over whole groups, as a program.

#include <optional>

#include "cli/commands/command.hpp"
#include "rollring/stash.hpp"

namespace rollring::cli {

struct ConsumeOptions;

struct TrainOptions {
    bool on = false;  // --group-size was given
    StashOptions stash;
    // At most one of them; otherwise the stash's default holds.
    std::optional<std::uint32_t> batch_groups;
    std::optional<std::uint32_t> batch_sequences;
    std::optional<std::uint64_t> batch_tokens;
    std::uint64_t batches_max = 0;  // 0: no such limit
    bool whole_records = false;     // in --output: all columns, not the fields of a group
    std::int64_t deadline_ms = -1;  // below 0: none
    std::int64_t no_progress_ms = 60'000;
    std::int64_t train_ms = 0;
    bool strict = false;  // producers whose keys seem to collide are a failure
};

// Returns --group-size, which the others need.
CLI::Option* add_train_options(CLI::App* app, TrainOptions& options);
// --group-size alone, also for `demo`. `take` gets its text, and the number unless it is auto.
using TakeGroupSize = std::function<void(const std::string&, std::optional<std::uint32_t>)>;
CLI::Option* add_group_size(CLI::App* app, const std::string& help, TakeGroupSize take);
int train(const ConsumeOptions& options);

// The report's "last_groups", for people.
std::string groups_table(const Json& groups);

}  // namespace rollring::cli
