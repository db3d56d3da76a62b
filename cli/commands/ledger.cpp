// `rollring ledger` and `rollring restore`: the contents of a ledger, in words and in a new ring.

#include "rollring/extras/ledger.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/commands/command.hpp"
#include "cli/commands/passed_on.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/terminal/progress.hpp"

namespace rollring::cli {
namespace {

constexpr const char* ledger_footer = R"(Examples:
  rollring ledger runs/42.ledger           # records, groups, files; all of them are checked
  rollring ledger runs/42.ledger --json
A ring that was made with --ledger DIR has its records there until a checkpoint has them:
the trainer calls stash.checkpointed(step).)";

constexpr const char* restore_footer = R"(Examples:
  rollring restore runs/42.ledger r              # makes ring r, with the sizes that it had
  rollring restore runs/42.ledger r --step 812   # the trainer goes on from its step 812
  rollring restore runs/42.ledger r --ledger runs/43.ledger    # the old disk has failed
For a new job, after the end of the processes, the container, the machine or the job. Groups
that no checkpoint has are sent again, in the order of their batches, and then all others;
those that are incomplete wait for their other members, as they did before. The trainer and
the workers may start at once, or later. A restore that was stopped begins anew:
rollring rm r, then rollring restore. Nothing of a ledger is removed by it.)";

struct LedgerOptions {
    std::string directory;
    bool json = false;
};

struct RestoreCommand {
    std::string directory;
    std::string ring;
    std::optional<std::uint64_t> step;
    std::string ledger_dir;
    RestoreOptions asked;
    std::int64_t timeout_ms = 600'000;
    bool json = false;
    bool quiet = false;
};

Json text_list(const std::vector<std::string>& texts) {
    Json made = Json::array();
    for (const std::string& one : texts) made.push_back(one);
    return made;
}

void warn_damaged(const std::vector<std::string>& damaged, std::uint64_t unreadable) {
    for (const std::string& one : damaged) warn("warning: " + one);
    if (unreadable != 0) {
        warn(fmt::format("warning: {} cannot be read: {} damaged, or the disk had not taken {} yet",
                         counted(unreadable, "record"), unreadable == 1 ? "it is" : "they are",
                         unreadable == 1 ? "it" : "them"));
    }
}

int show_ledger(const LedgerOptions& options) {
    const auto stat = stat_ledger(options.directory);
    if (!stat) return fail(stat.error());
    if (options.json) {
        print_json({{"ledger", stat->directory},
                    {"ring", stat->ring},
                    {"ring_id", std::to_string(stat->ring_id)},
                    {"records", stat->records},
                    {"tokens", stat->tokens},
                    {"groups", stat->groups},
                    {"acked", stat->acked},
                    {"record_bytes", stat->record_bytes},
                    {"file_bytes", stat->file_bytes},
                    {"files", stat->files},
                    {"is_written", stat->is_written},
                    {"failure", stat->failure.empty() ? Json() : Json(stat->failure)},
                    {"parked", stat->parked},
                    {"parked_bytes", stat->parked_bytes},
                    {"oldest_parked_ns", stat->parked == 0 ? Json() : Json(stat->oldest_parked_ns)},
                    {"damaged", text_list(stat->damaged)},
                    {"unreadable", stat->unreadable}});
        return exit_ok;
    }
    print(fmt::format("{}: {} of {} in {}, {}, that no checkpoint has; {} of them acknowledged\n",
                      printable(stat->directory), counted(stat->records, "record"),
                      counted(stat->tokens, "token"), counted(stat->groups, "group"),
                      bytes_text(stat->record_bytes), count_text(stat->acked)));
    print(fmt::format("of ring {}, {} in {}{}\n", printable(stat->ring),
                      bytes_text(stat->file_bytes), counted(stat->files, "file"),
                      stat->is_written ? ", being written" : ""));
    if (stat->parked != 0) {
        const std::int64_t age_ns = realtime_ns() - stat->oldest_parked_ns;
        print(fmt::format("{} in {}, parked for up to {}\n",
                          counted(stat->parked, "partial rollout"), bytes_text(stat->parked_bytes),
                          duration_text(static_cast<double>(age_ns) * 1e-9)));
    }
    if (!stat->failure.empty()) warn(printable(stat->failure));
    warn_damaged(stat->damaged, stat->unreadable);
    return exit_ok;
}

class Restoring {
  public:
    Restoring(const RestoreCommand& options, LedgerRestore restore)
        : options_(&options),
          restore_(std::move(restore)),
          waiting_(options.timeout_ms),
          progress_("restoring", options.json) {}

    int run();

  private:
    Result<bool> send();
    void report(double seconds, bool failed) const;
    void warn_new_damage();

    const RestoreCommand* options_;
    LedgerRestore restore_;
    Waiting waiting_;
    Progress progress_;
    std::size_t warned_ = 0;        // of RestoreStat::damaged
    std::uint64_t unreadable_ = 0;  // that were told of
};

// Sends one record, however long the ring has no room; false: all are sent, or it was interrupted.
Result<bool> Restoring::send() {
    constexpr std::int64_t slice_ms = 200;
    const Deadline end = Deadline::after_ms(options_->timeout_ms);
    while (!interrupted()) {
        auto sent = restore_.send(Deadline::after_ms(slice_ms));
        if (sent || sent.error().code != Errc::timed_out || end.passed()) {
            if (sent) waiting_.over();
            return sent;
        }
        if (!options_->quiet) waiting_.tell(sent.error().message);
    }
    return false;
}

// Damage shows when a record is read, too.
void Restoring::warn_new_damage() {
    const RestoreStat stat = restore_.stat();
    warn_damaged({stat.damaged.begin() + static_cast<std::ptrdiff_t>(warned_), stat.damaged.end()},
                 stat.unreadable - unreadable_);
    warned_ = stat.damaged.size();
    unreadable_ = stat.unreadable;
}

int Restoring::run() {
    warn_new_damage();
    const std::int64_t started_ns = monotonic_ns();
    std::optional<Error> problem;
    while (true) {
        const auto sent = send();
        if (!sent) problem = sent.error();
        if (!sent || !*sent) break;
        if (!progress_.due()) continue;
        const RestoreStat stat = restore_.stat();
        progress_.draw({.records = stat.sent, .tokens = stat.tokens, .bytes = stat.bytes},
                       static_cast<double>(stat.sent) / static_cast<double>(stat.records));
    }
    progress_.clear();
    warn_new_damage();
    const double seconds = static_cast<double>(monotonic_ns() - started_ns) * 1e-9;
    const int code = problem ? fail(*problem) : interrupted() ? interrupt_exit() : exit_ok;
    report(seconds, problem.has_value());
    return code;
}

void Restoring::report(double seconds, bool failed) const {
    const RestoreStat stat = restore_.stat();
    if (options_->json) {
        print_json({{"ledger", options_->directory},
                    {"ring", options_->ring},
                    {"records", stat.records},
                    {"groups", stat.groups},
                    {"sent", stat.sent},
                    {"tokens", stat.tokens},
                    {"bytes", stat.bytes},
                    {"left_out", stat.left_out},
                    {"parked", stat.parked},
                    {"damaged", text_list(stat.damaged)},
                    {"unreadable", stat.unreadable},
                    {"seconds", seconds},
                    {"failed", failed},
                    {"interrupted", interrupted()}});
        return;
    }
    if (stat.parked != 0) {
        print(fmt::format("{} beside the ledger, for the workers of the ring\n",
                          counted(stat.parked, "partial rollout")));
    }
    print(fmt::format("{} {} of {}, {} of {}, in {}\n", failed ? "failed after" : "sent",
                      counted(stat.sent, "record"), counted(stat.groups, "group"),
                      counted(stat.tokens, "token"), bytes_text(stat.bytes),
                      duration_text(seconds)));
}

int restore(RestoreCommand& options) {
    if (options.step) options.asked.step = static_cast<std::int64_t>(*options.step);
    if (!options.ledger_dir.empty()) options.asked.ledger_dir = options.ledger_dir;
    auto begun = LedgerRestore::begin(options.directory, options.ring, options.asked);
    if (!begun) return fail(begun.error());
    return Restoring(options, std::move(*begun)).run();
}

}  // namespace

Command add_ledger(CLI::App& app) {
    auto options = std::make_shared<LedgerOptions>();
    CLI::App* sub = app.add_subcommand(ledger_line.name, ledger_line.summary);
    sub->footer(ledger_footer);
    sub->add_option("LEDGER", options->directory, "Its directory")->required()->type_name("DIR");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    return {sub, [options] { return show_ledger(*options); }};
}

Command add_restore(CLI::App& app) {
    auto options = std::make_shared<RestoreCommand>();
    CLI::App* sub = app.add_subcommand(restore_line.name, restore_line.summary);
    sub->footer(restore_footer);
    sub->add_option("LEDGER", options->directory, "Its directory")->required()->type_name("DIR");
    add_ring_name(sub, options->ring);
    sub->add_option("--step", options->step,
                    "Leave out batches that were acknowledged with steps up to STEP: the\n"
                    "trainer's checkpoint has them")
        ->type_name("STEP");
    sub->add_option("--ledger", options->ledger_dir, "Directory for the ledger of the new ring")
        ->type_name("DIR")
        ->default_str("the same");
    sub->add_option("--name", options->asked.producer_name,
                    "Name of this producer, shown by `rollring stat`")
        ->type_name("PRODUCER")
        ->capture_default_str();
    add_duration(sub, "--timeout", options->timeout_ms, "How long to wait for room in the ring")
        ->default_str("10m");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    sub->add_flag("-q,--quiet", options->quiet, "Do not report waits");
    return {sub, [options] { return restore(*options); }};
}

}  // namespace rollring::cli
