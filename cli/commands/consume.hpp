#pragma once
// `rollring consume`: the trainer's side as a program; verifies, counts, and writes back.

#include <optional>

#include "cli/commands/command.hpp"
#include "cli/commands/train.hpp"
#include "rollring/consumer.hpp"

namespace rollring::cli {

struct ConsumeOptions {
    std::string ring;
    std::uint64_t records_max = 0;  // 0: no such limit
    bool until_closed = false;
    std::uint64_t producers = 1;    // that must have joined before `until_closed` can end it
    std::int64_t idle_ms = 10'000;  // 0: wait forever
    std::int64_t attach_ms = 30'000;
    std::string output;
    std::uint64_t hold = 0;
    std::uint64_t hold_seed = 1;
    bool no_verify = false;
    bool quiet = false;
    bool json = false;
    TrainOptions train;
    std::uint32_t parent = 0;
};

int consume(const ConsumeOptions& options);

}  // namespace rollring::cli
