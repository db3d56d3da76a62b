// `rollring record`: the groups that pass through a ring, into a recording.

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/commands/command.hpp"
#include "cli/commands/passed_on.hpp"
#include "cli/commands/tapped_groups.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/terminal/progress.hpp"
#include "rollring/extras/recording.hpp"

namespace rollring::cli {
namespace {

constexpr const char* record_footer = R"(Examples:
  rollring record r --output runs/42                      # until Ctrl-C, or the ring's end
  rollring record r --output runs/42 --groups 100         # a sample
  rollring record r --output runs/42 --max-bytes 100GiB   # without the oldest beyond that
The command takes no part in the run: it reads the ring's records fifty times a second, and
neither producers nor the trainer wait for it. Records released between two reads are
missed and counted. Each complete group is one batch of the recording, with advantages by
the formula of --advantages. To record exactly the batches of a trainer, each with its
step, record in the trainer: recorder = rr.extras.record(stash, "runs/42").)";

struct RecordOptions {
    std::string ring;
    std::string output;
    std::uint32_t group_size = 8;
    std::optional<std::uint64_t> groups_max;
    std::uint64_t max_bytes = 0;
    std::uint64_t file_bytes = std::uint64_t{1} << 30;
    std::uint64_t memory_bytes = std::uint64_t{1} << 30;
    Advantages advantages = Advantages::grpo;
    bool json = false;
};

struct Recorded {
    std::uint64_t groups = 0;
    Amount amount;
};

constexpr std::int64_t look_ms = 20;
constexpr std::uint64_t round_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t frame_bytes = 64;  // in front of each record of a lane

class Run {
  public:
    Run(const RecordOptions& options, Tap tap, RecordingWriter writer)
        : options_(&options),
          tap_(std::move(tap)),
          writer_(std::move(writer)),
          groups_(options.group_size, options.memory_bytes),
          progress_("recording", options.json) {}

    // Until the ring's end, enough groups, or an interrupt. Returns the exit code.
    int go();
    void report(double seconds, bool failed) const;

  private:
    [[nodiscard]] bool enough() const {
        return done_.groups >= options_->groups_max.value_or(UINT64_MAX);
    }
    Result<void> take(const TapRecord& record);

    const RecordOptions* options_;
    Tap tap_;
    RecordingWriter writer_;
    TappedGroups groups_;
    Progress progress_;
    Recorded done_;
    std::uint64_t looked_bytes_ = 0;  // of all rounds before this one
};

Result<void> Run::take(const TapRecord& record) {
    const auto group = groups_.add(record);
    if (!group || group->records.empty()) return {};
    const auto number =
        writer_.add_group(group->records, group->size, {.kind = options_->advantages});
    if (!number) return std::unexpected(number.error());
    done_.groups++;
    done_.amount.records += group->records.size();
    for (const TrajectoryView* one : group->records) done_.amount.tokens += one->n_tokens();
    done_.amount.bytes = writer_.bytes();
    return {};
}

int Run::go() {
    TapRecord record;
    while (!interrupted() && !enough()) {
        const TapPoll polled = tap_.poll(record);
        if (polled == TapPoll::removed) break;
        if (polled == TapPoll::empty) {
            const TapStats stats = tap_.stats();
            const std::uint64_t bytes = stats.bytes + frame_bytes * stats.records;
            // A full round has left records behind, which may be gone after a pause.
            if (bytes - looked_bytes_ < round_bytes) pause_ms(look_ms);
            looked_bytes_ = bytes;
            continue;
        }
        if (auto taken = take(record); !taken) {
            progress_.clear();
            return fail(taken.error());
        }
        if (progress_.due()) progress_.draw(done_.amount, std::nullopt);
    }
    progress_.clear();
    return interrupted() ? interrupt_exit() : exit_ok;
}

void Run::report(double seconds, bool failed) const {
    const TapStats stats = tap_.stats();
    if (options_->json) {
        print_json(Json{{"ring", options_->ring},
                        {"recording", options_->output},
                        {"groups", done_.groups},
                        {"records", done_.amount.records},
                        {"tokens", done_.amount.tokens},
                        {"bytes", writer_.bytes()},
                        {"missed", stats.missed},
                        {"unreadable", stats.unreadable},
                        {"incomplete", groups_.open() + groups_.given_up()},
                        {"seconds", seconds},
                        {"failed", failed},
                        {"interrupted", interrupted()}});
        return;
    }
    std::string text =
        fmt::format("recorded {}, {}, {} in {}; {} in {}\n", counted(done_.groups, "group"),
                    counted(done_.amount.records, "record"), counted(done_.amount.tokens, "token"),
                    duration_text(seconds), bytes_text(writer_.bytes()), options_->output);
    if (stats.missed != 0) {
        text +=
            fmt::format("missed {}, released between two reads\n", counted(stats.missed, "record"));
    }
    if (const auto open = groups_.open() + groups_.given_up(); open != 0) {
        text += fmt::format("left out {}, which were incomplete\n", counted(open, "group"));
    }
    print(text);
}

int record(const RecordOptions& options) {
    auto tap = open_patiently<Tap>(30'000, [&](std::int64_t try_ms) {
        return Tap::attach(options.ring, {.attach_timeout = std::chrono::milliseconds(try_ms),
                                          .round_bytes = round_bytes});
    });
    if (!tap) return interrupted() ? interrupt_exit() : fail(tap.error());
    auto writer =
        RecordingWriter::open(options.output, tap->schema(),
                              {.file_bytes = options.file_bytes, .max_bytes = options.max_bytes});
    if (!writer) return fail(writer.error());
    Run run(options, std::move(*tap), std::move(*writer));
    const std::int64_t started_ns = monotonic_ns();
    const int code = run.go();
    run.report(static_cast<double>(monotonic_ns() - started_ns) * 1e-9, code == exit_failed);
    return code;
}

}  // namespace

Command add_record(CLI::App& app) {
    auto options = std::make_shared<RecordOptions>();
    CLI::App* sub = app.add_subcommand(record_line.name, record_line.summary);
    sub->footer(record_footer);
    add_ring_name(sub, options->ring);
    sub->add_option("-o,--output", options->output,
                    "Directory of the recording; a recording in it is continued")
        ->required()
        ->type_name("DIR");
    sub->add_option("--groups", options->groups_max, "Stop after N groups")->type_name("N");
    sub->add_option("--group-size", options->group_size,
                    "Members of a group whose records do not say it")
        ->check(CLI::PositiveNumber)
        ->type_name("N")
        ->capture_default_str();
    add_choice(sub, "--advantages", options->advantages,
               {{"grpo", Advantages::grpo},
                {"mean", Advantages::mean},
                {"loo", Advantages::loo},
                {"none", Advantages::none}},
               "Formula of the advantages");
    add_bytes(sub, "--max-bytes", options->max_bytes,
              "Remove the oldest files while the total is larger; 0: no limit");
    add_bytes(sub, "--file-bytes", options->file_bytes, "Begin another file at this size")
        ->default_str("1GiB");
    add_bytes(sub, "--memory", options->memory_bytes,
              "Memory for incomplete groups; the oldest are left out beyond it")
        ->default_str("1GiB");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    return {sub, [options] { return record(*options); }};
}

}  // namespace rollring::cli
