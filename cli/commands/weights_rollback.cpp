#include "cli/commands/weights_rollback.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "cli/formats/json_tree.hpp"
#include "cli/terminal/colour.hpp"
#include "cli/terminal/quantity.hpp"
#include "cli/terminal/table.hpp"
#include "rollring/ring.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {
namespace {

// It serves the version still, or may.
bool may_serve(const RollbackAnswer& answer) {
    return answer.outcome == RollbackOutcome::silent || answer.outcome == RollbackOutcome::refused;
}

Json report_json(const std::string& ring, const RollbackReport& report, std::uint64_t still) {
    Json engines = Json::array();
    for (const RollbackAnswer& one : report.engines) {
        engines.push_back({{"rank", one.rank},
                           {"name", one.subscriber},
                           {"pid", one.pid},
                           {"outcome", name(one.outcome)},
                           {"live_version", one.live_version},
                           {"why", one.why}});
    }
    return {{"ring", ring},
            {"version", report.version},
            {"still", still},
            {"engines", std::move(engines)}};
}

std::string report_text(const std::string& ring, const RollbackReport& report,
                        std::uint64_t still) {
    using enum Table::Align;
    std::string text =
        still == 0 ? fmt::format("{}: no engine serves version {} now\n", ring, report.version)
                   : fmt::format("{}: {} of {} may serve version {} still\n", ring, still,
                                 counted(report.engines.size(), "engine"), report.version);
    if (report.engines.empty()) return text;
    Table table({{.title = "  subscriber", .align = left, .least = 10},
                 {.title = "rank"},
                 {.title = "pid"},
                 {.title = "outcome", .align = left},
                 {.title = "live"},
                 {.title = "why", .align = left, .least = 8}});
    for (const RollbackAnswer& one : report.engines) {
        table.add({"  " + printable(one.subscriber), std::to_string(one.rank),
                   std::to_string(one.pid), std::string(name(one.outcome)),
                   one.live_version < 0 ? "-" : std::to_string(one.live_version),
                   one.why.empty() ? "-" : printable(one.why)});
    }
    return text + table.text(width_of(STDOUT_FILENO), coloured(STDOUT_FILENO));
}

}  // namespace

CLI::Option* add_rollback(CLI::App* app, RollbackCommand& command) {
    CLI::Option* const option = app->add_flag("--rollback", command.wanted,
                                              "Ask the engines to leave the committed version");
    add_duration(app, "--timeout", command.timeout_ms,
                 "How long to wait for the engines' answers (default: 10s)")
        ->needs(option);
    return option;
}

int ask_back(const std::string& ring, const RollbackCommand& command, bool json) {
    const auto report = ask_rollback(ring, Deadline::after_ms(command.timeout_ms));
    if (!report) return fail(report.error());
    const auto still =
        static_cast<std::uint64_t>(std::ranges::count_if(report->engines, may_serve));
    if (json) {
        print_json(report_json(ring, *report, still));
    } else {
        show(report_text(ring, *report, still), false);
    }
    return still == 0 ? exit_ok : exit_failed;
}

}  // namespace rollring::cli
