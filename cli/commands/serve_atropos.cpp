// `rollring serve-atropos`.

#include <fmt/format.h>

#include <memory>

#include "cli/commands/command.hpp"
#include "cli/commands/door.hpp"
#include "cli/formats/json_tree.hpp"
#include "cli/serve/atropos_api.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr const char* serve_footer = R"(Examples:
  rollring serve-atropos run42                  # in the place of run-api
  rollring serve-atropos run42 --port 8001 --json
  ROLLRING_TOKEN=secret rollring serve-atropos run42 --host 0.0.0.0
Environments (rollout_server_url) and trainers of Atropos need no change. What is
posted lies in the ring before `received` is said. A batch is acknowledged when the
trainer asks for the next one; if it registers again, it gets the same one again.
While the ring is full, a post waits for 4 minutes before it is told 503; theirs
waits for 5. Killed and started again on the same ring, the server goes on: what is
in the ring, who has registered, and what the trainer has.
The ring is made if it is not there, and stays when the server ends; its other half
of lanes is for those who send without the server. docs/atropos.md has more.)";

constexpr std::uint32_t lanes = 64;
constexpr std::uint64_t lane_bytes = std::uint64_t{256} << 20;

struct ServeOptions {
    AtroposHubOptions hub;
    std::string host = "127.0.0.1";
    std::uint32_t port = 8000;
    std::string token;
    HttpLimits limits;
    bool json = false;
};

void report(const ServeOptions& options, const AtroposHub::Counts& counts) {
    if (options.json) {
        print_json({{"ring", options.hub.ring},
                    {"groups", counts.groups},
                    {"batches", counts.batches},
                    {"sequences", counts.sequences}});
        return;
    }
    print(fmt::format("received {} groups; {} sequences went in {} batches\n",
                      count_text(counts.groups), count_text(counts.sequences),
                      count_text(counts.batches)));
}

Result<bool> make_ring(const std::string& name) {
    auto made = create_ring(name, {.lanes = lanes, .lane_bytes = lane_bytes});
    if (made) return true;
    if (made.error().code == Errc::already_exists) return false;
    return std::unexpected(made.error());
}

int serve(ServeOptions& options) {
    const std::string token = token_of(options.token);
    if (options.hub.state_path.empty()) {
        options.hub.state_path = default_state_path(options.hub.ring);
    }
    auto listener = open_door(options.host, static_cast<std::uint16_t>(options.port), token);
    if (!listener) return fail(listener.error());
    const auto made = make_ring(options.hub.ring);
    if (!made) return fail(made.error());
    auto hub = AtroposHub::open(options.hub);
    if (!hub) return fail(hub.error());
    if (!has_standard_columns((*hub)->schema())) {
        return fail(Errc::bad_record, "ring '" + options.hub.ring +
                                          "' does not begin with the standard columns, which is "
                                          "what this program fills");
    }
    note(fmt::format("serving {} ring {} at http://{}:{}", *made ? "the new" : "the",
                     options.hub.ring, options.host, listener->port()));
    AtroposApi api(**hub);
    {
        HttpServer server(std::move(*listener), options.limits, token,
                          [&api](const HttpRequest& request) { return api.answer(request); });
        server.run();
    }
    report(options, (*hub)->counts());
    return interrupt_exit();
}

}  // namespace

Command add_serve_atropos(CLI::App& app) {
    auto options = std::make_shared<ServeOptions>();
    CLI::App* sub =
        app.add_subcommand("serve-atropos", "Be the server of Atropos, with a ring behind it");
    sub->footer(serve_footer);
    add_ring_name(sub, options->hub.ring);
    sub->add_option("--host", options->host,
                    "Address to listen on; another than this machine's\n"
                    "own needs --token")
        ->type_name("ADDRESS")
        ->capture_default_str();
    sub->add_option("--port", options->port, "Port to listen on; 0: any that is free")
        ->check(CLI::Range(0, 65535))
        ->type_name("N")
        ->capture_default_str();
    add_token(sub, options->token);
    add_bytes(sub, "--max-body", options->limits.body_bytes,
              "The longest body taken, unpacked; a few are in memory at once")
        ->default_str("1GiB");
    add_duration(sub, "--hold", options->hub.hold_ms,
                 "How long a post waits for room before it is told 503")
        ->default_str("4m");
    sub->add_option("--state", options->hub.state_path,
                    "File that remembers who registered, for the next server\n"
                    "on this ring; default: in ~/.local/state/rollring")
        ->type_name("FILE");
    sub->add_flag("--json", options->json, "Report as one JSON object on stdout");
    return {sub, [options] { return serve(*options); }};
}

}  // namespace rollring::cli
