// `rollring weights`: the weight channel of a ring, from outside.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cli/commands/command.hpp"
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
  rollring weights r --watch             # again and again, once a second; Ctrl-C ends it
  rollring weights r --watch 5 --json    # one JSON object a line
One block per publisher rank, with its subscribers. Staged: held whole, not known to be
committed; live: served. Times are those of the last version that was committed:
waiting for slots (part of put), put, packing after it, until all had staged, until the
other ranks had.
Takes no part in the channel and changes nothing. Exit code 1 if there is no such ring,
or no live publisher on it; with --watch it waits for one.)";

struct WeightsOptions {
    std::string ring;
    double watch_s = 0;
    bool json = false;
};

double milliseconds(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-6;
}

Json publisher_json(const WeightsStat& stat) {
    Json subscribers = Json::array();
    for (const SubscriberStat& one : stat.subscribers) subscribers.push_back(json_of(one));
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
    constexpr std::size_t enough = 12;  // "GPU-8f8d1c2e": tells those of a machine apart
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

std::string publisher_text(const WeightsStat& stat, std::size_t width) {
    const SyncTimes& times = stat.last_times;
    std::string text =
        fmt::format("rank {} of {}: '{}' (pid {}) on {}, memory {}\n", stat.rank, stat.ranks,
                    printable(stat.publisher), stat.pid, stat.gpu, printable(stat.memory));
    text += fmt::format("  {} tensors, {}: {} parts through {} slots of {}; layout {}{}\n",
                        count_text(stat.tensors), bytes_text(stat.payload_bytes),
                        count_text(stat.parts), stat.slots, bytes_text(stat.slot_bytes),
                        stat.layout_hash, stat.checksums ? ", with checksums" : "");
    text += fmt::format(
        "  {}; version begun {}, committed {}; {} syncs, {} aborts, {} handles passed\n",
        name(stat.state), version_text(stat.version), version_text(stat.committed_version),
        count_text(stat.syncs), count_text(stat.aborts), count_text(stat.handles_passed));
    if (stat.syncs != 0) {
        text += fmt::format(
            "  last sync: put {:.3f} ms (of it waiting for slots {:.3f}), publish {:.3f}, staged "
            "{:.3f}, commit {:.3f}\n",
            milliseconds(times.put_ns), milliseconds(times.wait_slot_ns),
            milliseconds(times.publish_ns), milliseconds(times.staged_ns),
            milliseconds(times.commit_ns));
    }
    if (stat.subscribers.empty()) text += "  no subscriber\n";
    text = wrapped(text, width);
    return stat.subscribers.empty()
               ? text
               : text + subscriber_table(stat.subscribers).text(width, coloured(STDOUT_FILENO));
}

// With --watch a channel that nobody publishes on is waited for: `waiting` says so.
int look(const WeightsOptions& options, Waiting& waiting) {
    const auto publishers = stat_weights(options.ring);
    if (!publishers) return fail(publishers.error());
    const std::string nobody = fmt::format(
        "ring {} has no live publisher of weights: a trainer becomes one by Publisher::create",
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
    std::string text = fmt::format("{}: {} publisher{}\n", options.ring, publishers->size(),
                                   publishers->size() == 1 ? "" : "s");
    const std::size_t width = width_of(STDOUT_FILENO);
    for (const WeightsStat& stat : *publishers) text += publisher_text(stat, width);
    show(text, options.watch_s > 0);
    return exit_ok;
}

}  // namespace

Command add_weights(CLI::App& app) {
    auto options = std::make_shared<WeightsOptions>();
    CLI::App* sub = app.add_subcommand("weights", "Show the weight channel of a ring");
    sub->footer(weights_footer);
    add_ring_name(sub, options->ring);
    add_watch(sub, options->watch_s,
              "Look again every so many seconds (1 if none are given), and\n"
              "wait for a publisher");
    sub->add_flag("--json", options->json, "A JSON object on stdout; with --watch one a line");
    return {sub, [options] {
                Waiting waiting(0);
                return repeat(options->watch_s, [&] { return look(*options, waiting); });
            }};
}

}  // namespace rollring::cli
