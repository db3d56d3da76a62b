// `rollring size`: the memory that a run needs, and the commands for it.

#include <fmt/core.h>

#include <memory>

#include "cli/commands/command.hpp"
#include "cli/formats/json_tree.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr const char* size_footer = R"(Examples:
  rollring size
  rollring size --producers 64 --group 16 --tokens 131072
  rollring size --tokens 32768 --token-bytes 969 --json    # with routed experts
With this much memory producers wait for room only while the trainer works on a batch for
long (docs/progress.md). A smaller ring works, too: producers wait while memory is short.
A producer holds its lane from the moment it opens, also while it is idle; the spill is
reserved as it is used.
Exit code 1 if the run needs more memory than this machine has.)";

struct SizeOptions {
    RunShape shape;
    bool json = false;
};

std::uint64_t gib_up(std::uint64_t bytes) {
    return (bytes + (std::uint64_t{1} << 30) - 1) >> 30;
}

std::string mib_text(std::uint64_t bytes) {
    return fmt::format("{}MiB", bytes >> 20);
}

int size(const SizeOptions& options) {
    const auto sizes = size_run(options.shape);
    if (!sizes) return fail(sizes.error());
    const MemoryBound least = least_memory_bound();
    const std::uint64_t at_open = sizes->memory_bytes - sizes->spill_bytes;
    const bool enough = least.free >= sizes->memory_bytes;
    const std::string create = fmt::format(
        "rollring create NAME --lanes {} --lane-bytes {} --spill-bytes {}", options.shape.producers,
        mib_text(sizes->lane_bytes), mib_text(sizes->spill_bytes));
    const std::string docker = fmt::format("--shm-size={}g", gib_up(sizes->memory_bytes));
    const std::string limit = fmt::format("{}Gi", gib_up(sizes->memory_bytes));
    if (options.json) {
        print_json({{"record_bytes", sizes->record_bytes},
                    {"lanes", options.shape.producers},
                    {"lane_bytes", sizes->lane_bytes},
                    {"spill_bytes", sizes->spill_bytes},
                    {"memory_bytes", sizes->memory_bytes},
                    {"at_open_bytes", at_open},
                    {"why", sizes->why},
                    {"create", create},
                    {"docker", docker},
                    {"size_limit", limit},
                    {"bound", least.name},
                    {"free_bytes", least.free},
                    {"enough", enough}});
        return enough ? exit_ok : exit_failed;
    }
    std::string text;
    for (const std::string& line : sizes->why) text += line + "\n";
    text +=
        fmt::format("\n/dev/shm    {}: {} once all producers are open, the rest as it is used\n",
                    bytes_text(sizes->memory_bytes), bytes_text(at_open));
    text += fmt::format("ring        {}\n", create);
    text += fmt::format("Docker      {}\n", docker);
    text += fmt::format(
        "Kubernetes  an emptyDir on /dev/shm with medium: Memory and sizeLimit: {}, which counts\n"
        "            against the memory limits of the pod\n",
        limit);
    text +=
        fmt::format("this machine: {} has {} free of {}, {}\n", least.name, bytes_text(least.free),
                    bytes_text(least.total), enough ? "enough" : "too little");
    print(text);
    return enough ? exit_ok : exit_failed;
}

}  // namespace

Command add_size(CLI::App& app) {
    auto options = std::make_shared<SizeOptions>();
    CLI::App* sub =
        app.add_subcommand("size", "Compute the memory that a run needs, and show the arithmetic");
    sub->footer(size_footer);
    sub->add_option("--producers", options->shape.producers, "Producers at once")
        ->check(CLI::Range(1, 4096))
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--group", options->shape.group_size, "Members of a group")
        ->check(CLI::Range(1, 65536))
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--tokens", options->shape.tokens,
                    "Tokens of the longest rollout, prompt included")
        ->check(CLI::Range(1, 1 << 30))
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--token-bytes", options->shape.token_bytes,
                    "Bytes of a token in all columns: ids 4, logprobs 4, mask 1")
        ->check(CLI::Range(1, 1 << 20))
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--batch-groups", options->shape.batch_groups, "Groups of a batch")
        ->check(CLI::Range(1, 1 << 20))
        ->type_name("N")
        ->capture_default_str();
    sub->add_flag("--json", options->json, "Report as one JSON object on stdout");
    return {sub, [options] { return size(*options); }};
}

}  // namespace rollring::cli
