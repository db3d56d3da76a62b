// `rollring metrics`: its command line, and one look.

#include "cli/commands/metrics.hpp"

#include <memory>

#include "cli/commands/passed_on.hpp"
#include "cli/commands/token.hpp"
#include "cli/formats/stat_metrics.hpp"

namespace rollring::cli {
namespace {

constexpr const char* metrics_footer = R"(Examples:
  rollring metrics                       # all rings of this user, until Ctrl-C
  rollring metrics r --once              # one ring, once, on stdout
  rollring metrics r --once --json
  rollring metrics r --listen 127.0.0.1:0
  ROLLRING_TOKEN=secret rollring metrics --listen 0.0.0.0:9464
The server exports the numbers of `rollring stat`, `groups` and `weights` at /metrics, in
the text format of Prometheus (0.0.4). It reads them at each request, so rings may come
and go; a named ring that does not exist has rollring_up 0. The command only reads.
docs/watching.md lists all metrics; docs/grafana.json is a dashboard for Grafana.)";

// A ring that has gone since it was listed, or that we cannot read, is not up. Its requests or its
// weight channel are left out if they go in between.
RingLook look_at(const std::string& ring) {
    RingLook look{.ring = ring};
    auto stat = stat_ring(ring);
    auto stash = stat_stash(ring);
    if (!stat || !stash) return look;
    look.up = true;
    look.stat = std::move(*stat);
    look.stash = std::move(*stash);
    if (auto requests = stat_requests(ring)) look.requests = std::move(*requests);
    if (auto weights = stat_weights(ring)) look.weights = std::move(*weights);
    return look;
}

// Whether these are valid names: a ring that is missing now may come later.
Result<void> check_names(const std::vector<std::string>& rings) {
    for (const std::string& ring : rings) {
        const auto stat = stat_ring(ring);
        if (!stat && stat.error().code == Errc::invalid_argument) {
            return std::unexpected(stat.error());
        }
    }
    return {};
}

int print_once(const MetricsOptions& options) {
    const MetricSet metrics = metrics_now(options.rings);
    if (options.json) {
        print_json(metrics.json());
    } else {
        print(metrics.text());
    }
    return exit_ok;
}

}  // namespace

MetricSet metrics_now(const std::vector<std::string>& rings) {
    std::vector<RingLook> looks;
    const std::vector<std::string> wanted = rings.empty() ? list_rings() : rings;
    looks.reserve(wanted.size());
    for (const std::string& ring : wanted) looks.push_back(look_at(ring));
    return metrics_of(looks, shared_memory_space());
}

Command add_metrics(CLI::App& app) {
    auto options = std::make_shared<MetricsOptions>();
    CLI::App* sub = app.add_subcommand(metrics_line.name, metrics_line.summary);
    sub->footer(metrics_footer);
    sub->add_option("NAME", options->rings, "Names of rings; default: all rings of this user")
        ->type_name("");
    sub->add_option("--listen", options->listen,
                    "Address to listen on; an address that other machines\n"
                    "can reach needs --token; port 0: any free port")
        ->type_name("ADDRESS:PORT")
        ->capture_default_str();
    add_token(sub, options->token);
    CLI::Option* once = sub->add_flag("--once", options->once, "Print the metrics once on stdout");
    sub->add_flag("--json", options->json, "With --once: print a JSON list of the metric families")
        ->needs(once);
    return {sub, [options] {
                if (const auto good = check_names(options->rings); !good) return fail(good.error());
                return options->once ? print_once(*options) : serve_metrics(*options);
            }};
}

}  // namespace rollring::cli
