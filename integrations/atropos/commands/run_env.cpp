// `rollring run-env`.

#include <memory>

#include "cli/commands/command.hpp"
#include "cli/commands/in_python.hpp"
#include "integrations/atropos/commands/atropos_commands.hpp"

namespace rollring::cli {
namespace {

constexpr const char* run_footer = R"(Examples:
  rollring run-env my_envs.gsm8k:GSM8kEnv serve --slurm false
Use it in place of the environment's own file, with the same arguments: everything after
MODULE:CLASS is passed to the environment. Its groups go into the ring as columns instead
of JSON over HTTP. All other requests go to the server at its rollout_server_url, which
must be `rollring serve-atropos`; the server tells it the name of the ring
($ROLLRING_RING overrides it). The environment's Python needs the package rollring.)";

int run_env(const std::string& python, std::vector<std::string> words) {
    if (words.empty()) {
        return fail(Errc::invalid_argument,
                    "run-env needs the MODULE:CLASS of an environment as its first argument");
    }
    return become_python(python, "rollring.integrations.atropos.run_env", std::move(words));
}

}  // namespace

Command add_run_env(CLI::App& app) {
    auto python = std::make_shared<std::string>(default_python());
    CLI::App* sub = app.add_subcommand(
        "run-env", "Run an Atropos environment that sends its groups through a ring");
    sub->footer(run_footer);
    sub->end_at_word("MODULE:CLASS [ARGUMENTS]");
    add_python(sub, *python);
    return {sub, [python, sub] { return run_env(*python, sub->rest()); }};
}

}  // namespace rollring::cli
