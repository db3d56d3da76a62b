// `rollring create` and `rollring rm`.

#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>

#include "cli/commands/command.hpp"
#include "cli/commands/spill_options.hpp"
#include "cli/formats/json_tree.hpp"
#include "cli/formats/schema_file.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr std::string_view create_footer = R"(Examples:
  rollring create r                       # sizes derived from this machine
  rollring create r --lanes 64 --lane-bytes 16MiB
  rollring create r --lane-bytes 8GiB --soft-bytes 8GiB    # no soft wrap
  rollring create r --overflow /var/tmp    # overflow to disk if memory runs out
  rollring create r --ledger runs/42.ledger    # survives the machine: rollring restore
  rollring create r --exist-ok --lanes 64    # an existing ring of 64 lanes is accepted
  rollring create r --schema more.json    # standard columns plus those in the file
A schema file is a list of columns to add:
  [{{"name":"entropy","dtype":"f32","per":"token","dims":[],"required":false}}]
`dims` are the lengths behind the first one, 0 for any; dtypes are
{}.
Bytes are rounded up to pages of 4 KiB. A lane takes memory in /dev/shm when a
producer takes the lane; the largest record must fit. `rollring size` says how much
a run needs.)";

constexpr const char* rm_footer = R"(Examples:
  rollring rm r
  rollring rm r --force    # even while processes are attached
Attached processes keep their mapping; no other process finds the ring any more.)";

struct CreateOptions {
    std::string ring;
    std::string schema = "standard";
    RingOptions made;
    std::uint64_t lane_bytes = bytes_not_given;
    SpillOptions spill;
    bool exist_ok = false;
    bool json = false;
    CLI::App* command = nullptr;  // knows the given options
};

// The given options, and nothing else.
RingExpectation expectation_of(const CreateOptions& options) {
    const RingOptions& made = options.made;
    RingExpectation wanted;
    const auto take = [&](const char* option, auto& expected, const auto& value) {
        if (options.command->given(option)) expected = value;
    };
    take("--lanes", wanted.lanes, made.lanes);
    take("--lane-bytes", wanted.lane_bytes, made.lane_bytes);
    take("--soft-bytes", wanted.soft_bytes, made.soft_bytes);
    take("--journal-records", wanted.journal_records, made.journal_records);
    wanted.spill_bytes = made.spill_bytes;
    if (!made.overflow_dir.empty()) wanted.overflow_dir = made.overflow_dir;
    wanted.overflow_bytes = made.overflow_bytes;
    take("--group-rows", wanted.group_rows, made.group_rows);
    take("--requests", wanted.requests, made.requests);
    take("--request-bytes", wanted.request_bytes, made.request_bytes);
    if (!made.ledger_dir.empty()) wanted.ledger_dir = made.ledger_dir;
    take("--ledger-bytes", wanted.ledger_bytes, made.ledger_bytes);
    take("--durable", wanted.durable, made.durable);
    take("--schema", wanted.schema, made.schema);
    return wanted;
}

// Of lanes that no usual record fits into: often the unit of the number was forgotten.
std::string small_lanes(const CreateOptions& options, const RingStat& stat) {
    constexpr std::uint64_t usual_bytes = std::uint64_t{64} << 10;
    if (stat.lane_bytes >= usual_bytes) return {};
    const bool no_unit = options.lane_bytes < 1024;
    return fmt::format(
        "no record of more than {} fits into a lane{}: `rollring size --tokens N` says what a run "
        "needs",
        bytes_text(stat.lane_bytes),
        no_unit ? fmt::format(" (--lane-bytes {} is in bytes; write a unit, such as {}MiB)",
                              options.lane_bytes, options.lane_bytes)
                : "");
}

void report_created(const CreateOptions& options, const RingStat& stat, const RingPlan& plan) {
    std::string warnings;
    for (const std::string& warning : {plan.warning, small_lanes(options, stat)}) {
        if (warning.empty()) continue;
        warn("warning: " + warning);
        warnings += (warnings.empty() ? "" : "; ") + warning;
    }
    if (options.json) {
        print_json({{"ring", options.ring},
                    {"created", true},
                    {"lanes", stat.lane_count},
                    {"lane_bytes", stat.lane_bytes},
                    {"soft_bytes", stat.soft_bytes},
                    {"spill_bytes", stat.spill_bytes},
                    {"chosen", plan.why.empty() ? Json() : Json(plan.why)},
                    {"warning", warnings.empty() ? Json() : Json(warnings)},
                    {"overflow_bytes", stat.overflow_bytes},
                    {"overflow_file", stat.overflow_path},
                    {"ledger", stat.ledger_dir},
                    {"ledger_bytes", stat.ledger_bytes},
                    {"durable", stat.ledger_dir.empty() ? Json() : Json(name(stat.durable))},
                    {"group_rows", options.made.group_rows},
                    {"requests", options.made.requests},
                    {"request_bytes", options.made.request_bytes},
                    {"columns", options.made.schema.columns().size()}});
        return;
    }
    const auto given = [](std::uint64_t wanted, std::uint64_t made) {
        return wanted == made || wanted == 0
                   ? ""
                   : fmt::format(" ({} rounded up to pages)", count_text(wanted));
    };
    print(
        fmt::format("created {}: {} lanes of {}{}, a spill of {}{}\n", options.ring,
                    stat.lane_count, bytes_text(stat.lane_bytes),
                    given(options.made.lane_bytes, stat.lane_bytes), bytes_text(stat.spill_bytes),
                    given(options.made.spill_bytes.value_or(stat.spill_bytes), stat.spill_bytes)));
    if (!plan.why.empty()) print(plan.why + "\n");
    if (stat.overflow_bytes != 0) {
        print(fmt::format(
            "overflow: up to {}{} in {}\n", bytes_text(stat.overflow_bytes),
            given(options.made.overflow_bytes.value_or(stat.overflow_bytes), stat.overflow_bytes),
            stat.overflow_path));
    }
    if (!stat.ledger_dir.empty()) {
        print(fmt::format("ledger: up to {} in {}, durable by {}\n", bytes_text(stat.ledger_bytes),
                          stat.ledger_dir, name(stat.durable)));
    }
}

int report_existing(const CreateOptions& options) {
    const auto same = expect_ring(options.ring, expectation_of(options));
    if (!same) return fail(same.error());
    if (options.json) {
        print_json({{"ring", options.ring}, {"created", false}});
    } else {
        print(fmt::format("{} already exists with these options\n", options.ring));
    }
    return exit_ok;
}

int create(CreateOptions& options) {
    if (options.schema != "standard") {
        auto schema = read_schema_file(options.schema);
        if (!schema) return fail(schema.error());
        options.made.schema = std::move(*schema);
    }
    apply(options.spill, options.made);
    if (options.lane_bytes == 0) {  // create_ring chooses by the machine
        return fail(Errc::invalid_argument, "--lane-bytes is 0 B, must be 1 B to 128 GiB");
    }
    if (options.lane_bytes != bytes_not_given) options.made.lane_bytes = options.lane_bytes;
    const auto plan = plan_ring(options.made);
    if (!plan) return fail(plan.error());
    if (auto made = create_ring(options.ring, options.made); !made) {
        if (!options.exist_ok || made.error().code != Errc::already_exists) {
            return fail(made.error());
        }
        return report_existing(options);
    }
    // As it was made: bytes are rounded up to pages.
    const auto stat = stat_ring(options.ring);
    if (!stat) return fail(stat.error());
    report_created(options, *stat, *plan);
    // A reader of the exit code takes the ring for missing, and makes it again.
    if (failed_write() != 0) static_cast<void>(remove_ring(options.ring, false));
    return exit_ok;
}

struct RmOptions {
    std::string ring;
    bool force = false;
};

}  // namespace

Command add_create(CLI::App& app) {
    auto options = std::make_shared<CreateOptions>();
    CLI::App* sub = app.add_subcommand("create", "Create a ring");
    std::string dtypes;
    for (const KnownDType& known : known_dtypes) {
        dtypes += dtypes.empty() ? "" : ", ";
        dtypes += known.name;
    }
    sub->footer(fmt::format(create_footer, dtypes));
    add_ring_name(sub, options->ring);
    sub->add_option("--lanes", options->made.lanes,
                    "Maximum number of concurrent producers, 1 to 4096")
        ->type_name("N")
        ->capture_default_str();
    add_bytes(sub, "--lane-bytes", options->lane_bytes, "Memory of each lane, as 64MiB or 8GiB")
        ->default_str("64MiB, or less where memory is less");
    add_bytes(sub, "--soft-bytes", options->made.soft_bytes,
              "Wrap a lane early, after this many bytes, while the consumer\n"
              "keeps up; 0: derived from the cache; --lane-bytes or more: never")
        ->default_str("0");
    sub->add_option("--journal-records", options->made.journal_records,
                    "Maximum number of records in one acknowledgement")
        ->type_name("N")
        ->capture_default_str();
    add_spill_options(sub, options->spill, true);
    sub->add_option("--ledger", options->made.ledger_dir,
                    "Directory on a disk, for all records that no checkpoint has: the\n"
                    "death of the machine takes none of them")
        ->type_name("DIR");
    add_bytes(sub, "--ledger-bytes", options->made.ledger_bytes,
              "Maximum size of the ledger; while it is full, the run waits")
        ->default_str("64GiB");
    add_choice(sub, "--durable", options->made.durable,
               {{"group", Durable::group}, {"record", Durable::record}, {"none", Durable::none}},
               "When a record counts as durable: once the disk has it, which\n"
               "many share (group); likewise, and before any batch has it\n"
               "(record); once it is written (none)");
    sub->add_option("--group-rows", options->made.group_rows,
                    "Maximum number of groups that a stash has open")
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--requests", options->made.requests,
                    "Maximum number of requests under way; 0: none")
        ->type_name("N")
        ->capture_default_str();
    add_bytes(sub, "--request-bytes", options->made.request_bytes, "Maximum size of a request")
        ->default_str("2MiB");
    sub->add_option("--schema", options->schema, "standard, or a file with additional columns")
        ->type_name("standard|FILE.json")
        ->capture_default_str();
    sub->add_flag("--exist-ok", options->exist_ok,
                  "Accept an existing ring, unless it differs in one of the\n"
                  "options given here");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    options->command = sub;
    return {sub, [options] { return create(*options); }};
}

Command add_rm(CLI::App& app) {
    auto options = std::make_shared<RmOptions>();
    CLI::App* sub = app.add_subcommand("rm", "Remove a ring and the records in it");
    sub->footer(rm_footer);
    add_ring_name(sub, options->ring);
    sub->add_flag("-f,--force", options->force,
                  "Remove the ring even while processes are attached");
    return {sub, [options] {
                const auto removed = remove_ring(options->ring, options->force);
                if (!removed) return fail(removed.error());
                return exit_ok;
            }};
}

}  // namespace rollring::cli
