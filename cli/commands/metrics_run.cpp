// The server of `rollring metrics`.

#include <fmt/core.h>

#include <charconv>
#include <mutex>
#include <optional>

#include "cli/commands/door.hpp"
#include "cli/commands/metrics.hpp"
#include "cli/commands/token.hpp"
#include "cli/http/http_server.hpp"

namespace rollring::cli {
namespace {

struct Place {
    std::string host;
    std::uint16_t port;
};

// HOST:PORT; for an IPv6 address, [HOST]:PORT.
std::optional<Place> parse_place(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return std::nullopt;
    std::string host = text.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) {
        host = host.substr(1, host.size() - 2);
    } else if (host.contains(':')) {
        return std::nullopt;  // its port would be ambiguous
    }
    std::uint16_t port = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
    if (error != std::errc{} || at != end || host.empty()) return std::nullopt;
    return Place{std::move(host), port};
}

HttpAnswer plain(int status, std::string text) {
    return {.status = status, .body = std::move(text), .content_type = "text/plain; charset=utf-8"};
}

// One look at a time, for all clients together.
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
        return {.body = metrics_now(rings_).text(),
                .content_type = std::string(MetricSet::content_type)};
    }

  private:
    std::vector<std::string> rings_;
    std::mutex mutex_;
};

}  // namespace

int serve_metrics(const MetricsOptions& options) {
    const auto place = parse_place(options.listen);
    if (!place) {
        return fail(Errc::invalid_argument, "--listen: '" + options.listen +
                                                "' is not ADDRESS:PORT, such as 127.0.0.1:9464");
    }
    const std::string token = token_of(options.token);
    auto listener = open_door(place->host, place->port, token, "--listen ADDRESS:PORT");
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

}  // namespace rollring::cli
