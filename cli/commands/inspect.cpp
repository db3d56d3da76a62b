#include "cli/commands/inspect.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/formats/json_tree.hpp"
#include "cli/terminal/table.hpp"

namespace rollring::cli {
namespace {

constexpr const char* stat_footer = R"(Examples:
  rollring stat r
  rollring stat r --watch             # once a second, with rates; Ctrl-C ends it
  rollring stat r --watch 5 --json    # one JSON object a line
Waiting: records to be delivered; unreleased: their bytes and those that are held.
Oldest: the age of the oldest record that is not released. Drops: records lost, doubled
or torn, and bytes given up behind damage. Works beside a live consumer and changes
nothing. On a terminal the table is cut to its width, in a pipe it is whole.)";

struct Rates {
    double records_per_s = 0;
    double tokens_per_s = 0;
    double gb_per_s = 0;
};

Rates rates_of(const LaneStat& now, const RingStat* before, double seconds) {
    if (before == nullptr || seconds <= 0) return {};
    const auto found = std::ranges::find(before->lanes, now.lane, &LaneStat::lane);
    const auto per_second = [&](std::uint64_t LaneStat::* counter) {
        const std::uint64_t old = found != before->lanes.end() ? (*found).*counter : 0;
        const std::uint64_t grown = now.*counter >= old ? now.*counter - old : 0;
        return static_cast<double>(grown) / seconds;
    };
    return {per_second(&LaneStat::committed_records), per_second(&LaneStat::committed_tokens),
            per_second(&LaneStat::committed_bytes) * 1e-9};
}

Json lane_json(const LaneStat& lane, const RingStat* before, double seconds) {
    Json json{{"lane", lane.lane},
              {"producer", lane.producer},
              {"pid", lane.pid},
              {"epoch", lane.epoch},
              {"alive", lane.alive},
              {"retired", lane.retired},
              {"state", lane.state},
              {"depth_records", lane.depth_records},
              {"depth_bytes", lane.depth_bytes},
              {"oldest_age_s", nullptr},
              {"committed_records", lane.committed_records},
              {"committed_tokens", lane.committed_tokens},
              {"committed_bytes", lane.committed_bytes},
              {"delivered_records", lane.delivered_records},
              {"released_records", lane.released_records},
              {"waits", lane.waits},
              {"laps_soft", lane.laps_soft},
              {"laps_full", lane.laps_full},
              {"jumps", lane.jumps},
              {"lost", lane.lost},
              {"duplicates", lane.duplicates},
              {"torn", lane.torn},
              {"redelivered", lane.redelivered},
              {"dropped_bytes", lane.dropped_bytes},
              {"producers_lost", lane.producers_lost},
              {"producers_closed", lane.producers_closed}};
    if (lane.oldest_age_ns >= 0) {
        json["oldest_age_s"] = static_cast<double>(lane.oldest_age_ns) * 1e-9;
    }
    if (before != nullptr) {
        const Rates rates = rates_of(lane, before, seconds);
        json["records_per_s"] = rates.records_per_s;
        json["tokens_per_s"] = rates.tokens_per_s;
        json["gb_per_s"] = rates.gb_per_s;
    }
    return json;
}

Table lane_table(const RingStat& now, const RingStat* before, double seconds) {
    using enum Table::Align;
    std::vector<Table::Column> columns{{.title = "lane"},
                                       {.title = "producer", .align = left, .least = 8, .most = 20},
                                       {.title = "pid", .rank = 3},
                                       {.title = "state", .align = left},
                                       {.title = "waiting"},
                                       {.title = "unreleased", .rank = 1},
                                       {.title = "oldest", .rank = 2},
                                       {.title = "records", .rank = 4},
                                       {.title = "drops"}};
    if (before != nullptr) {
        columns.push_back({.title = "tokens/s", .rank = 5});
        columns.push_back({.title = "GB/s", .rank = 6});
    }
    Table table(std::move(columns));
    for (const LaneStat& lane : now.lanes) {
        std::string drops = count_text(lane.lost + lane.duplicates + lane.torn);
        if (lane.dropped_bytes != 0) drops += " + " + bytes_text(lane.dropped_bytes);
        const std::string age = lane.oldest_age_ns < 0
                                    ? "-"
                                    : duration_text(static_cast<double>(lane.oldest_age_ns) * 1e-9);
        std::vector<std::string> cells{std::to_string(lane.lane),
                                       lane.producer,
                                       std::to_string(lane.pid),
                                       lane.state,
                                       count_text(lane.depth_records),
                                       bytes_text(lane.depth_bytes),
                                       age,
                                       count_text(lane.committed_records),
                                       std::move(drops)};
        if (before != nullptr) {
            const Rates rates = rates_of(lane, before, seconds);
            cells.push_back(short_text(rates.tokens_per_s));
            cells.push_back(fmt::format("{:.2f}", rates.gb_per_s));
        }
        table.add(std::move(cells));
    }
    return table;
}

std::string stat_text(const RingStat& now, const RingStat* before, double seconds) {
    const std::size_t width = width_of(STDOUT_FILENO);
    std::string text = fmt::format(
        "{}: {} lanes of {}, {} reserved; consumer {}\n", now.name, now.lane_count,
        bytes_text(now.lane_bytes), bytes_text(now.resident_bytes),
        now.consumer_alive ? fmt::format("alive (pid {})", now.consumer_pid) : "not there");
    if (now.overflow_bytes != 0) {
        text += fmt::format("overflow: {} of {} in {}\n", bytes_text(now.overflow_resident_bytes),
                            bytes_text(now.overflow_bytes), printable(now.overflow_path));
    }
    if (now.last_acked_step >= 0) text += fmt::format("last step: {}\n", now.last_acked_step);
    if (now.policy_version >= 0) text += fmt::format("policy version: {}\n", now.policy_version);
    if (now.lanes.empty()) text += "no producer has come yet\n";
    text = wrapped(text, width);
    return now.lanes.empty() ? text : text + lane_table(now, before, seconds).text(width);
}

struct StatOptions {
    std::string ring;
    double watch_s = 0;
    bool json = false;
};

int stat(const StatOptions& options) {
    std::optional<RingStat> before;
    std::int64_t before_ns = 0;
    return repeat(options.watch_s, [&] {
        auto now = stat_ring(options.ring);
        if (!now) return fail(now.error());
        const std::int64_t now_ns = monotonic_ns();
        const double seconds = static_cast<double>(now_ns - before_ns) * 1e-9;
        const RingStat* earlier = before ? &*before : nullptr;
        if (options.json) {
            print_json(to_json(*now, earlier, seconds));
        } else {
            show(stat_text(*now, earlier, seconds), options.watch_s > 0);
        }
        before = std::move(*now);
        before_ns = now_ns;
        return exit_ok;
    });
}

int ls(bool json) {
    Json list = Json::array();
    using enum Table::Align;
    Table table({{.title = "ring", .align = left, .least = 12},
                 {.title = "health", .align = left},
                 {.title = "lanes", .rank = 2},
                 {.title = "lane", .rank = 3},
                 {.title = "reserved", .rank = 1},
                 {.title = "consumer", .align = left},
                 {.title = "producers"}});
    std::string details;
    for (const auto& ring : list_rings()) {
        const RingDiagnosis diagnosis = diagnose_ring(ring);
        Json entry{{"ring", ring},
                   {"health", std::string(name(diagnosis.health))},
                   {"in_use", diagnosis.in_use},
                   {"has_records", diagnosis.has_records}};
        std::vector<std::string> cells{ring, std::string(name(diagnosis.health))};
        if (const auto stat = stat_ring(ring)) {
            const auto alive =
                std::ranges::count_if(stat->lanes, [](const LaneStat& lane) { return lane.alive; });
            entry["lanes"] = stat->lane_count;
            entry["lane_bytes"] = stat->lane_bytes;
            entry["resident_bytes"] = stat->resident_bytes;
            entry["consumer_alive"] = stat->consumer_alive;
            entry["producers_alive"] = alive;
            cells.insert(cells.end(),
                         {std::to_string(stat->lane_count), bytes_text(stat->lane_bytes),
                          bytes_text(stat->resident_bytes), stat->consumer_alive ? "alive" : "-",
                          std::to_string(alive)});
        } else {
            cells.insert(cells.end(), 5, "-");
            details += ring + ": " + diagnosis.detail + "\n";
        }
        table.add(std::move(cells));
        list.push_back(std::move(entry));
    }
    if (json) {
        print_json(list);
    } else {
        const std::size_t width = width_of(STDOUT_FILENO);
        print(list.empty() ? "no rings\n" : table.text(width) + wrapped(details, width));
    }
    return exit_ok;
}

}  // namespace

Json to_json(const RingStat& now, const RingStat* before, double seconds) {
    Json lanes = Json::array();
    for (const auto& lane : now.lanes) lanes.push_back(lane_json(lane, before, seconds));
    return {{"ring", now.name},
            {"lane_count", now.lane_count},
            {"lane_bytes", now.lane_bytes},
            {"soft_bytes", now.soft_bytes},
            {"spill_bytes", now.spill_bytes},
            {"overflow_bytes", now.overflow_bytes},
            {"overflow_resident_bytes", now.overflow_resident_bytes},
            {"overflow_file", now.overflow_path},
            {"object_bytes", now.object_bytes},
            {"resident_bytes", now.resident_bytes},
            {"created_ns", now.created_ns},
            {"consumer_alive", now.consumer_alive},
            {"consumer_pid", now.consumer_pid},
            {"consumer_epoch", now.consumer_epoch},
            {"last_acked_step", now.last_acked_step},
            {"policy_version", now.policy_version},
            {"lanes", lanes}};
}

Command add_ls(CLI::App& app) {
    auto json = std::make_shared<bool>(false);
    CLI::App* sub = app.add_subcommand("ls", "List the rings of this user");
    sub->footer("Examples:\n  rollring ls\n  rollring ls --json");
    sub->add_flag("--json", *json, "A JSON list on stdout");
    return {sub, [json] { return ls(*json); }};
}

Command add_stat(CLI::App& app) {
    auto options = std::make_shared<StatOptions>();
    CLI::App* sub = app.add_subcommand("stat", "Show the lanes of a ring");
    sub->footer(stat_footer);
    add_ring_name(sub, options->ring);
    add_watch(sub, options->watch_s,
              "Look again every so many seconds (1 if none are given), with rates");
    sub->add_flag("--json", options->json, "A JSON object on stdout; with --watch one a line");
    return {sub, [options] { return stat(*options); }};
}

}  // namespace rollring::cli
