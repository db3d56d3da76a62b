#pragma once
// The options for the source and the choice of records, of `produce` and of `demo`.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/record_source.hpp"
#include "cli/terminal/options.hpp"

namespace rollring::cli {

struct InputOptions {
    std::string input;
    std::string synthetic;
    std::string format = "rollring";
    std::string source_name;
    std::string run_id;
    std::uint64_t line_bytes_max = Selection{}.line_bytes_max;
    std::optional<std::uint64_t> shuffle;
    std::uint64_t repeat = 1;
    std::uint64_t visit = 0;
    std::string shard;             // only `produce` has it
    bool skip_bad = false;         // the same
    std::uint32_t group_size = 0;  // of records that name none; 0: it is counted
};

// `more`: in the help text of --input.
void add_input_options(command_line::App* app, InputOptions& options, std::string_view more);

// Errc::invalid_argument if the options do not go together.
Result<std::unique_ptr<RecordSource>> open_source(const InputOptions& options);

// The same options again, for another process.
std::vector<std::string> to_arguments(const InputOptions& options);

}  // namespace rollring::cli
