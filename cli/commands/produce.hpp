#pragma once
// `rollring produce`: sends records from a file or a generator into a ring.

#include <optional>

#include "cli/commands/command.hpp"
#include "cli/commands/input_options.hpp"
#include "rollring/producer.hpp"

namespace rollring::cli {

struct ProduceOptions {
    std::string ring;
    InputOptions input;
    std::string producer_name;
    std::string checksum = "none";
    double tokens_per_s = 0;  // 0: unlimited
    std::optional<std::uint64_t> records_max;
    std::uint64_t batch = 1;
    std::int64_t timeout_ms = 600'000;
    bool digest_only = false;
    bool json = false;
    bool quiet = false;
    std::uint32_t parent = 0;
};

int produce(const ProduceOptions& options);

}  // namespace rollring::cli
