// `rollring create` and `rollring rm`.

#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/schema_file.hpp"
#include "rollring/ring.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {
namespace {

constexpr const char* create_footer =
    "Examples:\n"
    "  rollring create r\n"
    "  rollring create r --lanes 64 --lane-bytes 16MiB\n"
    "  rollring create r --lane-bytes 8GiB --soft-bytes 8GiB    no soft wrap\n"
    "  rollring create r --schema more.json                     the standard columns and those of "
    "the file\n"
    "A schema file is a list of columns to add:\n"
    "  "
    "[{\"name\":\"entropy\",\"dtype\":\"f32\",\"per\":\"token\",\"dims\":[],\"required\":false}]\n"
    "`dims` are the lengths behind the first one, 0 for any; dtypes are i8 to i64, u8 to u64, f16, "
    "bf16,\n"
    "f32, f64, bool.\n"
    "A lane takes memory in /dev/shm when a producer takes the lane; the largest record must fit.";

struct CreateOptions {
    std::string ring;
    std::string schema = "standard";
    RingOptions made;
    std::uint64_t spill_bytes = ~std::uint64_t{0};  // that: not given
    bool json = false;
};

int create(CreateOptions& options) {
    if (options.schema != "standard") {
        auto schema = read_schema_file(options.schema);
        if (!schema) return fail(schema.error());
        options.made.schema = std::move(*schema);
    }
    if (options.spill_bytes != ~std::uint64_t{0}) options.made.spill_bytes = options.spill_bytes;
    if (auto made = create_ring(options.ring, options.made); !made) return fail(made.error());
    const std::uint64_t lane_bytes = (options.made.lane_bytes + 4095) / 4096 * 4096;
    if (options.json) {
        print_json({{"ring", options.ring},
                    {"lanes", options.made.lanes},
                    {"lane_bytes", lane_bytes},
                    {"group_rows", options.made.group_rows},
                    {"columns", options.made.schema.columns().size()}});
    } else {
        print(fmt::format("created {}: {} lanes of {}\n", options.ring, options.made.lanes,
                          bytes_text(lane_bytes)));
    }
    return exit_ok;
}

struct RmOptions {
    std::string ring;
    bool force = false;
};

}  // namespace

Command add_create(CLI::App& app) {
    auto options = std::make_shared<CreateOptions>();
    CLI::App* sub = app.add_subcommand("create", "Make a ring");
    sub->footer(create_footer);
    add_ring_name(sub, options->ring);
    sub->add_option("--lanes", options->made.lanes, "Producers at once, 1 to 4096")
        ->type_name("N")
        ->capture_default_str();
    add_bytes(sub, "--lane-bytes", options->made.lane_bytes,
              "Memory of each lane, as 64MiB or 8GiB")
        ->default_str("64MiB");
    add_bytes(sub, "--soft-bytes", options->made.soft_bytes,
              "Turn back after so many while the consumer keeps up; 0: by\n"
              "the size of the cache; --lane-bytes or more: never")
        ->default_str("0");
    sub->add_option("--journal-records", options->made.journal_records,
                    "The most records that one acknowledgement can hold")
        ->type_name("N")
        ->capture_default_str();
    add_bytes(sub, "--spill-bytes", options->spill_bytes,
              "Memory for records of groups that stay incomplete, taken when a\n"
              "stash opens; 0: none")
        ->default_str("as --lane-bytes, at most 256MiB");
    sub->add_option("--group-rows", options->made.group_rows,
                    "Groups that a stash can have open at once")
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--schema", options->schema, "standard, or a file with more columns")
        ->type_name("standard|FILE.json")
        ->capture_default_str();
    sub->add_flag("--json", options->json, "Report as one JSON object on stdout");
    return {sub, [options] { return create(*options); }};
}

Command add_rm(CLI::App& app) {
    auto options = std::make_shared<RmOptions>();
    CLI::App* sub = app.add_subcommand("rm", "Remove a ring, and the records that are still in it");
    sub->footer(
        "Examples:\n"
        "  rollring rm r\n"
        "  rollring rm r --force    even while processes are attached: they keep their mapping, "
        "and\n"
        "                           nobody else finds the ring");
    add_ring_name(sub, options->ring);
    sub->add_flag("-f,--force", options->force, "Even while someone alive is attached");
    return {sub, [options] {
                const auto removed = remove_ring(options->ring, options->force);
                if (!removed) return fail(removed.error());
                remove_dead_channels(options->ring);
                return exit_ok;
            }};
}

}  // namespace rollring::cli
