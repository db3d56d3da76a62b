// `rollring weights`: the weight channel of a ring, from outside.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cli/commands/command.hpp"
#include "cli/commands/passed_on.hpp"
#include "cli/commands/weights_plan.hpp"
#include "cli/commands/weights_rollback.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/formats/stat_table.hpp"
#include "cli/terminal/colour.hpp"
#include "cli/terminal/table.hpp"
#include "rollring/ring.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {
namespace {

constexpr const char* weights_footer = R"(Examples:
  rollring weights r
  rollring weights r --watch             # repeat once a second until Ctrl-C
  rollring weights r --watch 5 --json    # one JSON object per line
  rollring weights r --rollback          # ask the engines to leave the newest version
  rollring weights --plan trainer.layout engine.layout
The output has one block per publisher rank, with its subscribers. A staged version is
complete but not yet committed; a live version is served. A refused subscriber could
not attach, or was not attached when a version came; its `problem` gives the reason. The
times are those of the last committed version: put (and the wait for slots in it),
publish, until all subscribers had staged it, until the other ranks had committed it.
An engine that stages by difference has a line of its own: the share of elements that
its last version changed, the memory of the list, and the times of comparing and of
exchanging, during which it does not serve.
With memory direct, engines read the trainer's tensors where they lie: one part, and no
slots of its own. `not direct` gives the reason why a trainer that allows it uses slots.
The exit code is 1 if the ring does not exist or has no live publisher; with --watch the
command waits for one. Except with --rollback the command only reads.
With --rollback it asks all engines that serve the committed version to restore the one
before, and waits for their answers: rolled_back, not_live (the engine serves another
version), refused (with the reason), silent (no answer yet: it answers when it next asks
for a version) or gone. An engine of a sharded trainer answers at each rank, and has left
the version already for all but the first. An engine takes requests if it stages by
difference and attached with rollback_when_asked. The exit code is 0 if no living engine
serves the version then, and 1 otherwise. The ring's committed version stays, and the
trainer does not send the version again.
With --plan it needs no ring: it computes the copies that bring a trainer's shards to an
engine's, from files of WeightLayout.to_bytes(), or folders of such files, one for each
rank. It prints the bytes of each pair of ranks, the tensors with the most bytes between
devices, and a placement of the engine's ranks with fewer, if there is one.)";

struct WeightsOptions {
    std::string ring;
    double watch_s = 0;
    bool json = false;
    PlanQuestion plan;
    RollbackCommand rollback;
};

double milliseconds(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-6;
}

Json publisher_json(const WeightsStat& stat) {
    Json subscribers = Json::array();
    for (const SubscriberStat& one : stat.subscribers) {
        Json subscriber = json_of(one);
        if (one.delta.version >= 0) subscriber["delta"] = json_of(one.delta);
        subscribers.push_back(std::move(subscriber));
    }
    Json json = json_of(stat);
    json["last_times_ms"] = json_of(stat.last_times);
    json["subscribers"] = std::move(subscribers);
    return json;
}

Json weights_json(const std::string& ring, const std::vector<WeightsStat>& publishers) {
    Json list = Json::array();
    for (const WeightsStat& stat : publishers) list.push_back(publisher_json(stat));
    return {{"ring", ring}, {"publishers", std::move(list)}};
}

std::string version_text(std::int64_t version) {
    return version < 0 ? "-" : std::to_string(version);
}

std::string gpu_text(const std::string& gpu) {
    constexpr std::size_t enough = 12;  // "GPU-8f8d1c2e": distinguishes those of a machine
    return gpu.substr(0, enough);
}

Table subscriber_table(const std::vector<SubscriberStat>& subscribers) {
    using enum Table::Align;
    using Row = SubscriberStat;
    const std::vector<StatColumn<Row>> columns{
        {{.title = "  subscriber", .align = left, .least = 10},
         [](const Row& one) { return "  " + printable(one.name); }},
        {{.title = "pid", .rank = 3}, &Row::pid},
        {{.title = "alive", .align = left}, &Row::alive},
        {{.title = "gpu", .align = left, .rank = 2},
         [](const Row& one) { return gpu_text(one.gpu); }},
        {{.title = "state", .align = left}, &Row::state},
        {{.title = "parts read", .rank = 1}, &Row::read_done_parts},
        {{.title = "staged"}, [](const Row& one) { return version_text(one.staged_version); }},
        {{.title = "live"}, [](const Row& one) { return version_text(one.live_version); }},
        {{.title = "problem", .align = left, .least = 8},
         [](const Row& one) { return one.problem.empty() ? "-" : printable(one.problem); }}};
    return table_of(columns, subscribers);
}

// One line for each engine that stages by difference.
std::string delta_text(const std::vector<SubscriberStat>& subscribers) {
    std::string text;
    for (const SubscriberStat& one : subscribers) {
        const DeltaReport& delta = one.delta;
        if (delta.version < 0) continue;
        const double share = delta.elements == 0 ? 0
                                                 : static_cast<double>(delta.changed) /
                                                       static_cast<double>(delta.elements);
        text += fmt::format(
            "  {}: version {} by difference ({}): {:.3f} % of {} changed, list of {}; compared in "
            "{:.3f} ms, exchanged in {:.3f}\n",
            printable(one.name), delta.version, name(delta.way), share * 100,
            counted(delta.elements, "element"), bytes_text(delta.list_bytes),
            milliseconds(delta.compare_ns), milliseconds(delta.swap_ns));
    }
    return text;
}

std::string publisher_text(const WeightsStat& stat, std::size_t width) {
    const SyncTimes& times = stat.last_times;
    std::string text =
        fmt::format("rank {} of {}: '{}' (pid {}) on {}, memory {}\n", stat.rank, stat.ranks,
                    printable(stat.publisher), stat.pid, stat.gpu, printable(stat.memory));
    text += fmt::format(
        "  {}, {}: {} through {} of {}; layout {}{}\n", counted(stat.tensors, "tensor"),
        bytes_text(stat.payload_bytes), counted(stat.parts, "part"), counted(stat.slots, "slot"),
        bytes_text(stat.slot_bytes), stat.layout_hash, stat.checksums ? ", with checksums" : "");
    if (!stat.why_not_direct.empty()) {
        text += fmt::format("  not direct: {}\n", printable(stat.why_not_direct));
    }
    text += fmt::format("  {}; version begun {}, committed {}; {}, {}, {} passed\n",
                        name(stat.state), version_text(stat.version),
                        version_text(stat.committed_version), counted(stat.syncs, "sync"),
                        counted(stat.aborts, "abort"), counted(stat.handles_passed, "handle"));
    if (stat.syncs != 0) {
        text += fmt::format(
            "  last sync: put {:.3f} ms (waiting for slots {:.3f}), publish {:.3f}, staged "
            "{:.3f}, commit {:.3f}\n",
            milliseconds(times.put_ns), milliseconds(times.wait_slot_ns),
            milliseconds(times.publish_ns), milliseconds(times.staged_ns),
            milliseconds(times.commit_ns));
    }
    if (stat.subscribers.empty()) text += "  no subscribers\n";
    text = wrapped(text + delta_text(stat.subscribers), width);
    return stat.subscribers.empty()
               ? text
               : text + subscriber_table(stat.subscribers).text(width, coloured(STDOUT_FILENO));
}

// With --watch a channel without a publisher is waited for: `waiting` reports it.
int look(const WeightsOptions& options, Waiting& waiting) {
    const auto publishers = stat_weights(options.ring);
    if (!publishers) return fail(publishers.error());
    const std::string nobody = fmt::format(
        "ring {} has no live weight publisher: a trainer creates one with "
        "Publisher::create, in Python with rollring.WeightPublisher",
        options.ring);
    if (publishers->empty() && options.watch_s <= 0) return fail(Errc::not_found, nobody);
    if (publishers->empty()) {
        waiting.tell(nobody);
    } else {
        waiting.over();
    }
    if (options.json) {
        print_json(weights_json(options.ring, *publishers));
        return exit_ok;
    }
    if (publishers->empty()) return exit_ok;
    std::string text =
        fmt::format("{}: {}\n", options.ring, counted(publishers->size(), "publisher"));
    const std::size_t width = width_of(STDOUT_FILENO);
    for (const WeightsStat& stat : *publishers) text += publisher_text(stat, width);
    show(text, options.watch_s > 0);
    return exit_ok;
}

}  // namespace

Command add_weights(CLI::App& app) {
    auto options = std::make_shared<WeightsOptions>();
    CLI::App* sub = app.add_subcommand(weights_line.name, weights_line.summary);
    sub->footer(weights_footer);
    CLI::Option* const ring = sub->add_option("NAME", options->ring, "Name of the ring");
    add_watch(sub, options->watch_s, "Repeat every SECONDS (default: 1), and wait for a publisher");
    sub->add_flag("--json", options->json, "Print a JSON object; with --watch one per line");
    add_rollback(sub, options->rollback)->excludes("--watch");
    add_plan(sub, options->plan)->excludes(ring)->excludes("--watch")->excludes("--rollback");
    return {sub, [options] {
                if (!options->plan.layouts.empty()) {
                    options->plan.json = options->json;
                    return show_plan(options->plan);
                }
                if (options->ring.empty()) {
                    return fail(Errc::invalid_argument, "name a ring, or give --plan");
                }
                if (options->rollback.wanted) {
                    return ask_back(options->ring, options->rollback, options->json);
                }
                Waiting waiting(0);
                return repeat(options->watch_s, [&] { return look(*options, waiting); });
            }};
}

}  // namespace rollring::cli
