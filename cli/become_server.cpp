// The commands that serve HTTP, in the program `rollring`: it becomes the program that has them.

#include "cli/commands/metrics.hpp"
#include "cli/commands/program.hpp"
#include "integrations/atropos/commands/serve_atropos.hpp"

namespace rollring::cli {
namespace {

constexpr const char* server_program = "rollring-serve";

}  // namespace

int serve_atropos(const ServeOptions& /*options*/) {
    return become_program(server_program);
}

int serve_metrics(const MetricsOptions& /*options*/) {
    return become_program(server_program);
}

}  // namespace rollring::cli
