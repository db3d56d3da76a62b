// `rollring replay`: the batches of a recording, sent into a ring again.

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cli/commands/command.hpp"
#include "cli/commands/passed_on.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/terminal/progress.hpp"
#include "rollring/extras/recording.hpp"
#include "rollring/producer.hpp"

namespace rollring::cli {
namespace {

constexpr const char* replay_footer = R"(Examples:
  rollring replay runs/42 r                      # all batches, as fast as the trainer takes them
  rollring replay runs/42 r --step 812           # one step of training again
  rollring replay runs/42 r --speed 1            # at the pace at which they were recorded
  rollring replay runs/42 --list                 # the batches that there are
A recording is made in the trainer: recorder = rr.extras.record(stash, "runs/42"). The
groups are sent one after the other in the order of their batches, with a mark of failure for
each member that was missing. A stash with the options of that run, in the default order or
in "fifo", makes the same batches again: the same order, rewards and advantages. Batches that
were not acknowledged were delivered again later, and are sent with --all only. Without a
ring, rr.open_recording gives every batch to a trainer's loop, bit for bit.)";

struct ReplayOptions {
    std::string recording;
    std::string ring;
    std::optional<std::uint64_t> step;
    std::optional<std::uint64_t> from_step;
    std::optional<std::uint64_t> to_step;
    double speed = 0;  // 0: unlimited
    std::uint32_t extra = 0;
    bool all = false;
    std::string producer_name = "replay";
    std::int64_t timeout_ms = 600'000;
    bool list = false;
    bool json = false;
    bool quiet = false;
};

struct Replayed {
    std::uint64_t batches = 0;
    std::uint64_t groups = 0;
    std::uint64_t marks = 0;  // of members that were missing
    Amount amount;
};

enum class Outcome { sent, stopped, failed };

class Sender {
  public:
    Sender(const ReplayOptions& options, Producer producer)
        : options_(&options), producer_(std::move(producer)), waiting_(options.timeout_ms) {}

    Outcome send(const RecordedBatch& batch);
    void close() { producer_.close(); }

    [[nodiscard]] const Schema& schema() const { return producer_.schema(); }
    Replayed done;
    Error problem{.code = Errc::busy};

  private:
    Outcome push(const Draft& draft);
    Outcome mark_missing(const Sequences& batch, std::size_t group);

    const ReplayOptions* options_;
    Producer producer_;
    Waiting waiting_;
};

Outcome Sender::push(const Draft& draft) {
    constexpr std::int64_t slice_ms = 200;
    const Deadline end = Deadline::after_ms(options_->timeout_ms);
    while (true) {
        const Push pushed = producer_.push(draft, Deadline::after_ms(slice_ms));
        if (pushed == Push::ok) {
            waiting_.over();
            return Outcome::sent;
        }
        if (interrupted()) return Outcome::stopped;
        if (pushed != Push::timed_out || end.passed()) {
            const bool bad = pushed == Push::bad_record || pushed == Push::too_large;
            problem = {.code = bad ? Errc::bad_record : Errc::busy, .message = producer_.problem()};
            return Outcome::failed;
        }
        if (!options_->quiet) waiting_.tell(producer_.problem());
    }
}

// A group that was shipped without some of its members is complete again with their marks.
Outcome Sender::mark_missing(const Sequences& batch, std::size_t group) {
    const auto first = batch.group_offsets()[group];
    const TrajectoryView& like = batch.sequences()[first].view;
    std::set<std::uint32_t> there;
    for (auto i = first; i < batch.group_offsets()[group + 1]; i++) {
        there.insert(batch.repetition_ids()[i]);
    }
    const BatchGroupInfo& info = batch.groups()[group];
    std::uint32_t number = 0;
    const std::uint64_t finals = std::uint64_t{info.size} + options_->extra;
    for (std::uint64_t missing = info.members; missing < finals; missing++) {
        Draft mark(like.instance_id());
        mark.meta.visit = like.meta().visit;
        mark.meta.group_size = info.size;
        mark.meta.status = Status::failed;
        while (there.contains(number)) number++;
        if (like.meta().repetition_id.has_value()) mark.meta.repetition_id = number++;
        if (const Outcome outcome = push(mark); outcome != Outcome::sent) return outcome;
        done.marks++;
    }
    return Outcome::sent;
}

Outcome Sender::send(const RecordedBatch& batch) {
    for (std::size_t group = 0; group < batch.groups().size(); group++) {
        for (auto i = batch.group_offsets()[group]; i < batch.group_offsets()[group + 1]; i++) {
            Draft draft = Draft::of(batch.sequences()[i].view);
            draft.meta.group_size = batch.groups()[group].size;
            if (const Outcome outcome = push(draft); outcome != Outcome::sent) return outcome;
            done.amount.records++;
            done.amount.tokens += draft.n_tokens();
        }
        const Outcome outcome = mark_missing(batch, group);
        if (outcome != Outcome::sent) return outcome;
        done.groups++;
    }
    done.batches++;
    return Outcome::sent;
}

// The indices of the batches to send. The groups of a batch that was given back are in a later one,
// too: only acknowledged ones are sent, unless there are none, as in a recording from outside.
std::vector<std::size_t> chosen(const Recording& recording, const ReplayOptions& options) {
    if (options.step) return recording.find_step(static_cast<std::int64_t>(*options.step));
    const auto batches = recording.batches();
    const bool steps = !options.all && std::ranges::any_of(batches, [](const RecordedInfo& info) {
        return info.step.has_value();
    });
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < batches.size(); i++) {
        const auto step = batches[i].step;
        if (steps && !step) continue;
        if (options.from_step && (!step || std::cmp_less(*step, *options.from_step))) continue;
        if (options.to_step && (!step || std::cmp_greater(*step, *options.to_step))) continue;
        all.push_back(i);
    }
    return all;
}

int list(const Recording& recording, const ReplayOptions& options) {
    Json batches = Json::array();
    std::string text;
    ReplayOptions every = options;
    every.all = true;
    for (const std::size_t i : chosen(recording, every)) {
        const RecordedInfo& info = recording.batches()[i];
        batches.push_back(Json{{"number", info.number},
                               {"step", info.step ? Json(*info.step) : Json()},
                               {"recorded_ns", info.recorded_ns},
                               {"groups", info.groups},
                               {"sequences", info.sequences},
                               {"tokens", info.tokens}});
        text += fmt::format("batch {}, {}: {}, {}, {}\n", info.number,
                            info.step ? fmt::format("step {}", *info.step) : "not acknowledged",
                            counted(info.groups, "group"), counted(info.sequences, "sequence"),
                            counted(info.tokens, "token"));
    }
    const std::string problem = recording.problem();
    if (options.json) {
        print_json(Json{{"recording", options.recording},
                        {"batches", std::move(batches)},
                        {"problem", problem.empty() ? Json() : Json(problem)}});
    } else {
        print(text);
        if (!problem.empty()) warn(problem);
    }
    return exit_ok;
}

// Sleeps until the batch is due.
void keep_pace(const RecordedInfo& info, const RecordedInfo& first, double speed,
               std::int64_t started_ns) {
    while (speed > 0 && !interrupted()) {
        const double due_s = static_cast<double>(info.recorded_ns - first.recorded_ns) * 1e-9;
        const double ahead_s =
            due_s / speed - static_cast<double>(monotonic_ns() - started_ns) * 1e-9;
        if (ahead_s < 0.001) return;
        pause_ms(std::clamp<std::int64_t>(static_cast<std::int64_t>(ahead_s * 1e3), 1, 100));
    }
}

int send_all(const Recording& recording, const std::vector<std::size_t>& all, Sender& sender,
             const ReplayOptions& options) {
    Progress progress("replaying", options.json);
    const std::int64_t started_ns = monotonic_ns();
    for (std::size_t i = 0; i < all.size() && !interrupted(); i++) {
        keep_pace(recording.batches()[all[i]], recording.batches()[all.front()], options.speed,
                  started_ns);
        if (interrupted()) break;
        const auto batch = recording.read(all[i]);
        progress.clear();
        if (!batch) return fail(batch.error());
        const Outcome outcome = sender.send(*batch);
        if (outcome == Outcome::failed) return fail(sender.problem);
        if (progress.due()) {
            progress.draw(sender.done.amount,
                          static_cast<double>(i + 1) / static_cast<double>(all.size()));
        }
    }
    return interrupted() ? interrupt_exit() : exit_ok;
}

void report(const ReplayOptions& options, const Replayed& done, double seconds, bool failed) {
    if (options.json) {
        print_json(Json{{"recording", options.recording},
                        {"ring", options.ring},
                        {"batches", done.batches},
                        {"groups", done.groups},
                        {"records", done.amount.records},
                        {"marks", done.marks},
                        {"tokens", done.amount.tokens},
                        {"seconds", seconds},
                        {"failed", failed},
                        {"interrupted", interrupted()}});
        return;
    }
    print(fmt::format("{} {}, {}, {}, {} in {}\n", failed ? "failed after" : "sent",
                      counted(done.batches, "batch"), counted(done.groups, "group"),
                      counted(done.amount.records, "record"), counted(done.amount.tokens, "token"),
                      duration_text(seconds)));
}

int replay(const ReplayOptions& options) {
    const auto recording = Recording::open(options.recording);
    if (!recording) return fail(recording.error());
    if (options.list) return list(*recording, options);
    if (options.ring.empty()) {
        return fail(Errc::invalid_argument, "replay needs the RING to send to, or --list");
    }
    const auto all = chosen(*recording, options);
    if (all.empty()) {
        return fail(Errc::not_found, fmt::format("{} has no such batch; `rollring replay {} "
                                                 "--list` shows all",
                                                 options.recording, options.recording));
    }
    if (const std::string problem = recording->problem(); !problem.empty()) warn(problem);
    auto producer = open_patiently<Producer>(
        std::min<std::int64_t>(options.timeout_ms, 30'000), [&](std::int64_t try_ms) {
            return Producer::open(options.ring,
                                  {.name = options.producer_name,
                                   .attach_timeout = std::chrono::milliseconds(try_ms)});
        });
    if (!producer) return interrupted() ? interrupt_exit() : fail(producer.error());
    if (producer->schema().id() != recording->schema().id()) {
        return fail(Errc::layout_mismatch,
                    fmt::format("ring {} has other columns than the recording: create it with "
                                "those of the recorded run",
                                options.ring));
    }
    Sender sender(options, std::move(*producer));
    const std::int64_t started_ns = monotonic_ns();
    const int code = send_all(*recording, all, sender, options);
    const double seconds = static_cast<double>(monotonic_ns() - started_ns) * 1e-9;
    if (options.json || code != exit_failed || sender.done.amount.records != 0) {
        report(options, sender.done, seconds, code == exit_failed);
    }
    sender.close();
    return code;
}

}  // namespace

Command add_replay(CLI::App& app) {
    auto options = std::make_shared<ReplayOptions>();
    CLI::App* sub = app.add_subcommand(replay_line.name, replay_line.summary);
    sub->footer(replay_footer);
    sub->add_option("RECORDING", options->recording, "Its directory, or one file of it")
        ->required()
        ->type_name("PATH");
    sub->add_option("RING", options->ring, "Name of the ring; it may appear within 30 s");
    sub->add_option("--step", options->step, "Only the batches that were acknowledged with STEP")
        ->type_name("STEP");
    sub->add_option("--from-step", options->from_step, "Only batches from this step on")
        ->type_name("STEP");
    sub->add_option("--to-step", options->to_step, "Only batches up to this step")
        ->type_name("STEP");
    sub->add_option("--speed", options->speed, "Pace: 1 as recorded, 2 twice as fast; 0: no limit")
        ->check(CLI::NonNegativeNumber)
        ->type_name("FACTOR")
        ->capture_default_str();
    sub->add_option("--extra", options->extra,
                    "Send N more marks for each group, for a stash with extra=N")
        ->type_name("N")
        ->capture_default_str();
    sub->add_flag("--all", options->all, "Send batches that were not acknowledged, too");
    sub->add_option("--name", options->producer_name,
                    "Name of this producer, shown by `rollring stat`")
        ->type_name("PRODUCER")
        ->capture_default_str();
    add_duration(sub, "--timeout", options->timeout_ms, "How long to wait for room in a full lane")
        ->default_str("10m");
    sub->add_flag("--list", options->list, "Send nothing; list the batches");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    sub->add_flag("-q,--quiet", options->quiet, "Do not report waits");
    return {sub, [options] { return replay(*options); }};
}

}  // namespace rollring::cli
