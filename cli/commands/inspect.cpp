#include "cli/commands/inspect.hpp"
#include "cli/commands/passed_on.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/formats/stat_report.hpp"
#include "cli/formats/stat_table.hpp"
#include "cli/terminal/colour.hpp"
#include "rollring/extras/requests.hpp"

namespace rollring::cli {
namespace {

constexpr const char* stat_footer = R"(Examples:
  rollring stat r
  rollring stat r --watch             # once a second, with rates, until Ctrl-C
  rollring stat r --watch 5 --json    # one JSON object per line
Waiting: records not yet delivered. Unreleased: bytes of records that are waiting or held
by the consumer. Oldest: age of the oldest unreleased record. Drops: lost, duplicate or
torn records, and bytes discarded after damage. If a trainer posts requests, the output
has their number and the workers that have taken them; --json lists each request. The
command only reads and works beside a live consumer. On a terminal tables are cut to its
width; in a pipe they are complete.)";

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

Json requests_json(const RequestsStat& requests) {
    Json workers = Json::array();
    for (const RequestWorkerStat& worker : requests.workers) workers.push_back(json_of(worker));
    Json under_way = Json::array();
    for (const RequestStat& request : requests.requests) under_way.push_back(json_of(request));
    Json json = json_of(requests);
    json["workers"] = std::move(workers);
    json["under_way"] = std::move(under_way);
    return json;
}

Json lane_json(const LaneStat& lane, const RingStat* before, double seconds) {
    Json json = json_of(lane);
    if (before != nullptr) {
        const Rates rates = rates_of(lane, before, seconds);
        json["records_per_s"] = rates.records_per_s;
        json["tokens_per_s"] = rates.tokens_per_s;
        json["gb_per_s"] = rates.gb_per_s;
    }
    return json;
}

// `before`: an earlier look, for the rates; its lanes may differ.
Json stat_json(const RingStat& now, const RequestsStat& requests, const RingStat* before,
               double seconds) {
    Json lanes = Json::array();
    for (const auto& lane : now.lanes) lanes.push_back(lane_json(lane, before, seconds));
    Json json = json_of(now);
    json["lanes"] = std::move(lanes);
    json["requests"] = requests_json(requests);
    return json;
}

// A dead producer's lane is free again as soon as the consumer has taken its records.
std::string state_text(const LaneStat& lane) {
    return cell_of(lane, &LaneStat::state) +
           (lane.died && lane.state == LaneState::free ? " (died)" : "");
}

std::string drops_text(const LaneStat& lane) {
    std::string drops = count_text(lane.lost + lane.duplicates + lane.torn);
    if (lane.dropped_bytes != 0) drops += " + " + cell_of(lane, &LaneStat::dropped_bytes);
    return drops;
}

Table lane_table(const RingStat& now, const RingStat* before, double seconds) {
    using enum Table::Align;
    std::vector<StatColumn<LaneStat>> columns{
        {{.title = "lane"}, &LaneStat::lane},
        {{.title = "producer", .align = left, .least = 8, .most = 20}, &LaneStat::producer},
        {{.title = "pid", .rank = 3}, &LaneStat::pid},
        {{.title = "state", .align = left}, state_text},
        {{.title = "waiting"}, &LaneStat::depth_records},
        {{.title = "unreleased", .rank = 1}, &LaneStat::depth_bytes},
        {{.title = "oldest", .rank = 2}, &LaneStat::oldest_age_ns},
        {{.title = "records", .rank = 4}, &LaneStat::committed_records},
        {{.title = "drops"}, drops_text}};
    if (before != nullptr) {
        const auto rates = [=](const LaneStat& lane) { return rates_of(lane, before, seconds); };
        columns.push_back({{.title = "tokens/s", .rank = 5}, [=](const LaneStat& lane) {
                               return short_text(rates(lane).tokens_per_s);
                           }});
        columns.push_back({{.title = "GB/s", .rank = 6}, [=](const LaneStat& lane) {
                               return fmt::format("{:.2f}", rates(lane).gb_per_s);
                           }});
    }
    return table_of(columns, now.lanes);
}

std::string requests_text(const RequestsStat& requests, std::size_t width) {
    if (!requests.used) return "";
    const auto cell = [&](auto member) { return cell_of(requests, member); };
    const auto since = [](std::int64_t ns, std::string_view what) {
        return ns < 0 ? "" : fmt::format(" ({} for {})", what, duration_text(double(ns) * 1e-9));
    };
    using enum Table::Align;
    const std::vector<StatColumn<RequestWorkerStat>> columns{
        {{.title = "seat"}, &RequestWorkerStat::seat},
        {{.title = "worker", .align = left, .least = 8, .most = 20}, &RequestWorkerStat::name},
        {{.title = "pid", .rank = 2}, &RequestWorkerStat::pid},
        {{.title = "alive", .align = left}, &RequestWorkerStat::alive},
        {{.title = "requests"}, &RequestWorkerStat::taken},
        {{.title = "oldest", .rank = 1}, &RequestWorkerStat::oldest_ns},
        {{.title = "answered"}, &RequestWorkerStat::answered}};
    std::string text = fmt::format(
        "requests: {} waiting{}, {} taken{}; posted {}: answered {}, given up {}, withdrawn {}; "
        "board {}\n",
        cell(&RequestsStat::waiting), since(requests.oldest_waiting_ns, "the oldest"),
        cell(&RequestsStat::taken), since(requests.oldest_taken_ns, "the oldest"),
        cell(&RequestsStat::posted), cell(&RequestsStat::answered), cell(&RequestsStat::given_up),
        cell(&RequestsStat::withdrawn),
        requests.board_alive ? fmt::format("alive (pid {})", requests.board_pid) : "none");
    text = wrapped(text, width);
    return requests.workers.empty()
               ? text
               : text + table_of(columns, requests.workers).text(width, coloured(STDOUT_FILENO));
}

std::string stat_text(const RingStat& now, const RequestsStat& requests, const RingStat* before,
                      double seconds) {
    const std::size_t width = width_of(STDOUT_FILENO);
    std::string text = fmt::format(
        "{}: {} of {}, {} reserved; consumer {}\n", now.name, counted(now.lane_count, "lane"),
        bytes_text(now.lane_bytes), bytes_text(now.resident_bytes),
        now.consumer_alive ? fmt::format("alive (pid {})", now.consumer_pid) : "none");
    if (now.overflow_bytes != 0) {
        text += fmt::format("overflow: {} of {} in {}\n", bytes_text(now.overflow_resident_bytes),
                            bytes_text(now.overflow_bytes), printable(now.overflow_path));
    }
    if (!now.ledger_dir.empty()) {
        text += fmt::format("ledger: up to {} in {}, durable by {}\n", bytes_text(now.ledger_bytes),
                            printable(now.ledger_dir), name(now.durable));
    }
    if (now.last_acked_step >= 0) text += fmt::format("last step: {}\n", now.last_acked_step);
    if (now.policy_version >= 0) text += fmt::format("policy version: {}\n", now.policy_version);
    if (now.lanes.empty()) text += "no producer has attached yet\n";
    text = wrapped(text, width);
    if (!now.lanes.empty())
        text += lane_table(now, before, seconds).text(width, coloured(STDOUT_FILENO));
    return text + requests_text(requests, width);
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
        const auto requests = stat_requests(options.ring);
        if (!requests) return fail(requests.error());
        const std::int64_t now_ns = monotonic_ns();
        const double seconds = static_cast<double>(now_ns - before_ns) * 1e-9;
        const RingStat* earlier = before ? &*before : nullptr;
        if (options.json) {
            print_json(stat_json(*now, *requests, earlier, seconds));
        } else {
            show(stat_text(*now, *requests, earlier, seconds), options.watch_s > 0);
        }
        before = std::move(*now);
        before_ns = now_ns;
        return exit_ok;
    });
}

// A ring's row in `ls` beside its health, if the ring can be read.
struct RingUse {
    std::uint32_t lanes;
    std::uint64_t lane_bytes;
    std::uint64_t resident_bytes;
    bool consumer_alive;
    std::uint64_t producers_alive;
};

template <class Visit>
constexpr void each_field(const RingUse*, Visit&& visit) {
    visit(Field{"lanes", FieldUnit::none, FieldKind::fact, &RingUse::lanes});
    visit(Field{"lane_bytes", FieldUnit::bytes, FieldKind::fact, &RingUse::lane_bytes});
    visit(Field{"resident_bytes", FieldUnit::bytes, FieldKind::gauge, &RingUse::resident_bytes});
    visit(Field{"consumer_alive", FieldUnit::none, FieldKind::gauge, &RingUse::consumer_alive});
    visit(Field{"producers_alive", FieldUnit::count, FieldKind::gauge, &RingUse::producers_alive});
}

struct RingRow {
    RingDiagnosis diagnosis;
    std::optional<RingUse> use;
};

std::vector<RingRow> look_at_all() {
    std::vector<RingRow> rows;
    for (const auto& ring : list_rings()) {
        RingRow& row = rows.emplace_back(diagnose_ring(ring), std::nullopt);
        const auto stat = stat_ring(ring);
        if (!stat) continue;
        const auto alive = std::ranges::count(stat->lanes, true, &LaneStat::alive);
        row.use = {stat->lane_count, stat->lane_bytes, stat->resident_bytes, stat->consumer_alive,
                   static_cast<std::uint64_t>(alive)};
    }
    return rows;
}

Json row_json(const RingRow& row) {
    Json json = json_of(row.diagnosis);
    if (row.use) {
        for_each_field(*row.use,
                       [&](const auto& field, const auto& value) { json[field.name] = value; });
    }
    return json;
}

Table ring_table(const std::vector<RingRow>& rows) {
    using enum Table::Align;
    const auto diagnosis = [](auto field) {
        return [=](const RingRow& row) { return cell_of(row.diagnosis, field); };
    };
    const auto use = [](auto field) {
        return [=](const RingRow& row) { return row.use ? cell_of(*row.use, field) : "-"; };
    };
    const auto consumer = [](const RingRow& row) {
        return row.use && row.use->consumer_alive ? "alive" : "-";
    };
    return table_of<RingRow>(
        {{{.title = "ring", .align = left, .least = 12}, diagnosis(&RingDiagnosis::name)},
         {{.title = "health", .align = left}, diagnosis(&RingDiagnosis::health)},
         {{.title = "lanes", .rank = 2}, use(&RingUse::lanes)},
         {{.title = "lane", .rank = 3}, use(&RingUse::lane_bytes)},
         {{.title = "reserved", .rank = 1}, use(&RingUse::resident_bytes)},
         {{.title = "consumer", .align = left}, consumer},
         {{.title = "producers"}, use(&RingUse::producers_alive)}},
        rows);
}

int ls(bool json) {
    const std::vector<RingRow> rows = look_at_all();
    if (json) {
        Json list = Json::array();
        for (const RingRow& row : rows) list.push_back(row_json(row));
        print_json(list);
        return exit_ok;
    }
    std::string details;
    for (const RingRow& row : rows) {
        if (!row.use) details += row.diagnosis.name + ": " + row.diagnosis.detail + "\n";
    }
    const std::size_t width = width_of(STDOUT_FILENO);
    print(rows.empty()
              ? "no rings\n"
              : ring_table(rows).text(width, coloured(STDOUT_FILENO)) + wrapped(details, width));
    return exit_ok;
}

}  // namespace

Command add_ls(CLI::App& app) {
    auto json = std::make_shared<bool>(false);
    CLI::App* sub = app.add_subcommand(ls_line.name, ls_line.summary);
    sub->footer("Examples:\n  rollring ls\n  rollring ls --json");
    sub->add_flag("--json", *json, "Print a JSON list");
    return {sub, [json] { return ls(*json); }};
}

Command add_stat(CLI::App& app) {
    auto options = std::make_shared<StatOptions>();
    CLI::App* sub = app.add_subcommand(stat_line.name, stat_line.summary);
    sub->footer(stat_footer);
    add_ring_name(sub, options->ring);
    add_watch(sub, options->watch_s, "Repeat every SECONDS (default: 1), with rates");
    sub->add_flag("--json", options->json, "Print a JSON object; with --watch one per line");
    return {sub, [options] { return stat(*options); }};
}

}  // namespace rollring::cli
