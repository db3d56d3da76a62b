// `rollring metrics`.

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <mutex>

#include "cli/commands/command.hpp"
#include "cli/commands/door.hpp"
#include "cli/formats/stat_metrics.hpp"
#include "cli/serve/http_server.hpp"

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

struct MetricsOptions {
    std::vector<std::string> rings;  // empty: all
    std::string listen = "127.0.0.1:9464";
    std::string token;
    bool once = false;
    bool json = false;
};

struct Place {
    std::string host;
    std::uint16_t port;
};

// HOST:PORT, of an IPv6 address [HOST]:PORT.
std::optional<Place> parse_place(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return std::nullopt;
    std::string host = text.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) {
        host = host.substr(1, host.size() - 2);
    } else if (host.contains(':')) {
        return std::nullopt;  // where would its port begin?
    }
    std::uint16_t port = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
    if (error != std::errc{} || at != end || host.empty()) return std::nullopt;
    return Place{std::move(host), port};
}

// One that has gone since it was listed, or is nobody's that we could read, is not up. So are its
// requests, or its weight channel, left out where it goes in between.
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

MetricSet look(const std::vector<std::string>& rings) {
    std::vector<RingLook> looks;
    for (const std::string& ring : rings.empty() ? list_rings() : rings) {
        looks.push_back(look_at(ring));
    }
    return metrics_of(looks, shared_memory_space());
}

HttpAnswer plain(int status, std::string text) {
    return {.status = status, .body = std::move(text), .content_type = "text/plain; charset=utf-8"};
}

// One look at a time, whoever asks.
class Exporter {
  public:
    explicit Exporter(std::vector<std::string> rings) : rings_(std::move(rings)) {}

    HttpAnswer answer(const HttpRequest& request) {
        if (request.method != "GET" && request.method != "HEAD") {
            return plain(405, "ask by GET\n");
        }
        if (request.path == "/") return plain(200, "rollring: the metrics are at /metrics\n");
        if (request.path != "/metrics") return plain(404, "there is only /metrics\n");
        const std::scoped_lock lock(mutex_);
        return {.body = look(rings_).text(), .content_type = std::string(MetricSet::content_type)};
    }

  private:
    std::vector<std::string> rings_;
    std::mutex mutex_;
};

// Whether they are names at all: a ring that is not there may come.
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
    const MetricSet metrics = look(options.rings);
    if (options.json) {
        print_json(metrics.json());
    } else {
        print(metrics.text());
    }
    return exit_ok;
}

int serve(const MetricsOptions& options) {
    const auto place = parse_place(options.listen);
    if (!place) {
        return fail(Errc::invalid_argument, "--listen: '" + options.listen +
                                                "' is not ADDRESS:PORT, such as 127.0.0.1:9464");
    }
    const std::string token = token_of(options.token);
    auto listener = open_door(place->host, place->port, token);
    if (!listener) return fail(listener.error());
    note(fmt::format("metrics at http://{}:{}/metrics",
                     place->host.contains(':') ? "[" + place->host + "]" : place->host,
                     listener->port()));
    Exporter exporter(options.rings);
    constexpr HttpLimits limits{.body_bytes = 4096, .small_bytes = 4096, .connections = 32};
    HttpServer server(std::move(*listener), limits, token,
                      [&](const HttpRequest& request) { return exporter.answer(request); });
    server.run();
    return interrupt_exit();
}

}  // namespace

Command add_metrics(CLI::App& app) {
    auto options = std::make_shared<MetricsOptions>();
    CLI::App* sub = app.add_subcommand("metrics", "Export metrics of rings to Prometheus");
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
                return options->once ? print_once(*options) : serve(*options);
            }};
}

}  // namespace rollring::cli
