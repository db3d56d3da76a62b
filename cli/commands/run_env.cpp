// `rollring run-env`.

#include <memory>

#include "cli/commands/command.hpp"
#include "cli/commands/in_python.hpp"

namespace rollring::cli {
namespace {

constexpr const char* run_footer = R"(Examples:
  rollring run-env my_envs.gsm8k:GSM8kEnv serve --slurm false
In the place of running the environment's own file with the same arguments. All
behind MODULE:CLASS is the environment's. Its groups go into the ring as columns,
and not as JSON over HTTP; for the rest it talks to the server at its
rollout_server_url, which is `rollring serve-atropos` and tells it the ring's name
($ROLLRING_RING does, too). Needs the Python package where the environment runs.)";

int run_env(const std::string& python, std::vector<std::string> words) {
    if (words.empty()) {
        return fail(Errc::invalid_argument, "run-env needs the MODULE:CLASS of an environment");
    }
    return become_python(python, "rollring.integrations.run_env", std::move(words));
}

}  // namespace

Command add_run_env(CLI::App& app) {
    auto python = std::make_shared<std::string>(default_python());
    CLI::App* sub = app.add_subcommand(
        "run-env", "Run an environment of Atropos whose groups go into the ring");
    sub->footer(run_footer);
    sub->end_at_word();
    add_python(sub, *python);
    return {sub, [python, sub] { return run_env(*python, sub->rest()); }};
}

}  // namespace rollring::cli
