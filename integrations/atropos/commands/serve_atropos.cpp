// `rollring serve-atropos`: its command line.

#include "integrations/atropos/commands/serve_atropos.hpp"

#include <memory>

#include "cli/commands/passed_on.hpp"
#include "cli/commands/token.hpp"
#include "integrations/atropos/commands/atropos_commands.hpp"

namespace rollring::cli {
namespace {

constexpr const char* serve_footer = R"(Examples:
  rollring serve-atropos run42                  # in place of run-api
  rollring serve-atropos run42 --port 8001 --json
  rollring serve-atropos run42 --lane-bytes 16MiB   # for groups of up to 14 MiB
  ROLLRING_TOKEN=secret rollring serve-atropos run42 --host 0.0.0.0
Environments (rollout_server_url) and trainers of Atropos need no change. A group is in
the ring before the server answers `received`. A batch is acknowledged when the trainer
asks for the next one; a trainer that registers again gets the same batch again. While
the ring is full, a post waits for up to 4 minutes and is then answered with 503; the
clients of Atropos wait for 5. A server that is killed and started again on the same ring
continues: with the groups in the ring, the registrations, and the trainer's batch.
The ring is created if it does not exist. A ring that the server has created is removed
when the server ends, unless the ring holds records, or a trainer or an environment has
registered, or --keep is given; in these cases the server reports that the ring stays.
Half of the lanes are for processes that send without the server. See docs/atropos.md.)";

}  // namespace

Command add_serve_atropos(CLI::App& app) {
    auto options = std::make_shared<ServeOptions>();
    CLI::App* sub = app.add_subcommand(serve_atropos_line.name, serve_atropos_line.summary);
    sub->footer(serve_footer);
    add_ring_name(sub, options->hub.ring);
    sub->add_option("--host", options->host,
                    "Address to listen on; an address that other machines\n"
                    "can reach needs --token")
        ->type_name("ADDRESS")
        ->capture_default_str();
    sub->add_option("--port", options->port, "Port to listen on; 0: any free port")
        ->check(CLI::Range(0, 65535))
        ->type_name("N")
        ->capture_default_str();
    add_token(sub, options->token);
    add_bytes(sub, "--lane-bytes", options->lane_bytes,
              "Memory of each lane of a ring that the server creates. A group\n"
              "must fit into seven eighths of a lane; two lanes' worth is in\n"
              "use from the first batch on")
        ->default_str("an eighth of the machine's memory, at most 64MiB");
    add_bytes(sub, "--max-body", options->limits.body_bytes,
              "Longest accepted body, unpacked; a few are in memory at once")
        ->default_str("1GiB");
    add_duration(sub, "--hold", options->hub.hold_ms,
                 "How long a post waits for room before it is answered with 503")
        ->default_str("4m");
    sub->add_option("--state", options->hub.state_path,
                    "File with the registrations, for the next server on this\n"
                    "ring; default: in ~/.local/state/rollring")
        ->type_name("FILE");
    sub->add_flag("--keep", options->keep, "Keep the ring at the end");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    return {sub, [options] { return serve_atropos(*options); }};
}

}  // namespace rollring::cli
