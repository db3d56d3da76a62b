// `rollring groups`: the groups in the stash of a ring, as seen from outside.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cli/commands/command.hpp"
#include "cli/commands/passed_on.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/formats/stat_table.hpp"
#include "cli/terminal/colour.hpp"
#include "rollring/stat.hpp"

namespace rollring::cli {
namespace {

constexpr const char* groups_footer = R"(Examples:
  rollring groups r
  rollring groups r --watch             # repeat once a second
  rollring groups r --stuck 60s --json  # exit code 1 if one has not changed for a minute
A group is open until all members have arrived, ready until a batch takes it, and leased
while it is trained on; a leased group is never stuck. The command only reads and works
beside a live trainer; after the trainer has ended it shows the last state. On a terminal
the table is cut to its width; in a pipe and with --json it is complete.)";

struct GroupsOptions {
    std::string ring;
    std::int64_t stuck_ms = 0;  // 0: show all
    std::uint64_t limit = 20;
    double watch_s = 0;
    bool json = false;
};

Json groups_json(const StashStat& stat, const std::vector<GroupStat>& shown, std::uint64_t chosen) {
    Json groups = Json::array();
    for (const GroupStat& group : shown) groups.push_back(json_of(group));
    Json json = json_of(stat);
    add_account(json["account"], stat.account);
    const LatestBatch& batch = stat.latest_batch;
    json["latest_batch"] =
        Json{{"sequences", batch.sequences},
             {"tokens", batch.tokens},
             {"rewarded", batch.rewarded},
             {"mean_reward", batch.rewarded == 0 ? Json() : Json(batch.mean_reward)}};
    json["matching"] = chosen;
    json["groups"] = std::move(groups);
    return json;
}

std::string text_of(const StashStat& stat, const std::vector<GroupStat>& shown,
                    std::uint64_t chosen, const GroupsOptions& options) {
    const StashAccount& account = stat.account;
    std::string text =
        fmt::format("{}: stash {}; {} of at most {}, {} held\n", stat.ring,
                    stat.open ? "open" : "closed", counted(stat.open_groups, "open group"),
                    stat.max_open_groups == 0 ? "-" : count_text(stat.max_open_groups),
                    bytes_text(stat.held_bytes));
    text += fmt::format(
        "accepted {} records: {} shipped, {} dropped, {} held, {} leased; {}\n",
        cell_of(account, &StashAccount::accepted), cell_of(account, &StashAccount::shipped),
        cell_of(account, &StashAccount::dropped), cell_of(account, &StashAccount::held),
        cell_of(account, &StashAccount::leased),
        !stat.account_whole   ? "being written"
        : account.conserved() ? "balanced"
                              : "NOT BALANCED");
    text += fmt::format("groups shipped {} ({} partial), dropped {}; batches {}; copied {}\n",
                        cell_of(account, &StashAccount::groups_shipped),
                        cell_of(account, &StashAccount::groups_partial),
                        cell_of(account, &StashAccount::groups_dropped),
                        cell_of(account, &StashAccount::batches),
                        cell_of(stat, &StashStat::copied_bytes));
    if (const LatestBatch& batch = stat.latest_batch; batch.sequences != 0) {
        const double tokens = static_cast<double>(batch.tokens) / double(batch.sequences);
        text += fmt::format("latest batch: {}, mean length {} tokens, mean reward {}\n",
                            counted(batch.sequences, "sequence"), short_text(tokens),
                            batch.rewarded == 0 ? "-" : fmt::format("{:.3f}", batch.mean_reward));
    }
    if (options.stuck_ms > 0) {
        text += fmt::format("{} unchanged for {}\n", counted(chosen, "group"),
                            duration_text(static_cast<double>(options.stuck_ms) * 1e-3));
    }
    const std::size_t width = width_of(STDOUT_FILENO);
    text = wrapped(text, width);
    if (shown.empty()) return text;
    using enum Table::Align;
    const std::vector<StatColumn<GroupStat>> columns{
        {{.title = "group", .align = left, .least = 12, .most = 40}, &GroupStat::instance_id},
        {{.title = "state", .align = left, .rank = 1}, &GroupStat::state},
        {{.title = "there"},
         [](const GroupStat& group) { return fmt::format("{}/{}", group.complete, group.size); }},
        {{.title = "failed", .rank = 5}, &GroupStat::failed},
        {{.title = "age", .rank = 4}, &GroupStat::age_ns},
        {{.title = "unchanged", .rank = 2}, &GroupStat::unchanged_ns},
        {{.title = "missing", .align = left, .least = 8}, &GroupStat::missing_text},
        {{.title = "from", .align = left, .least = 8, .rank = 3}, &GroupStat::producers_text}};
    text += table_of(columns, shown).text(width, coloured(STDOUT_FILENO));
    if (chosen > shown.size()) {
        text += fmt::format("... and {} more: see --limit\n", count_text(chosen - shown.size()));
    }
    return text;
}

int look(const GroupsOptions& options) {
    auto stat = stat_stash(options.ring);
    if (!stat) return fail(stat.error());
    std::vector<GroupStat> chosen = std::move(stat->groups);
    if (options.stuck_ms > 0) {
        const std::int64_t stuck_ns = nanoseconds(options.stuck_ms);
        std::erase_if(chosen, [&](const GroupStat& group) {
            return group.state == GroupState::leased || group.unchanged_ns < stuck_ns;
        });
    }
    const std::uint64_t count = chosen.size();
    chosen.resize(std::min(count, options.limit));
    if (options.json) {
        print_json(groups_json(*stat, chosen, count));
    } else if (!stat->used) {
        print(
            fmt::format("{}: no trainer has opened a stash on this ring yet. `rollring consume {} "
                        "--group-size auto` forms groups, and so does rollring::Stash\n",
                        options.ring, options.ring));
    } else {
        show(text_of(*stat, chosen, count, options), options.watch_s > 0);
    }
    return options.stuck_ms > 0 && count != 0 ? exit_failed : exit_ok;
}

}  // namespace

Command add_groups(CLI::App& app) {
    auto options = std::make_shared<GroupsOptions>();
    CLI::App* sub = app.add_subcommand(groups_line.name, groups_line.summary);
    sub->footer(groups_footer);
    add_ring_name(sub, options->ring);
    add_duration(sub, "--stuck", options->stuck_ms,
                 "Show only groups unchanged for this long; exit code 1 if\n"
                 "there are any");
    sub->add_option("--limit", options->limit, "Show at most N groups, the oldest first")
        ->type_name("N")
        ->capture_default_str();
    add_watch(sub, options->watch_s, "Repeat every SECONDS (default: 1)");
    sub->add_flag("--json", options->json, "Print a JSON object; with --watch one per line");
    return {sub, [options] { return repeat(options->watch_s, [&] { return look(*options); }); }};
}

}  // namespace rollring::cli
