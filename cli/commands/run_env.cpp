// `rollring run-env`.

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cli/commands/command.hpp"

namespace rollring::cli {
namespace {

constexpr const char* run_footer = R"(Examples:
  rollring run-env my_envs.gsm8k:GSM8kEnv serve --slurm false
In the place of running the environment's own file with the same arguments. All
behind MODULE:CLASS is the environment's. Its groups go into the ring as columns,
and not as JSON over HTTP; for the rest it talks to the server at its
rollout_server_url, which is `rollring serve-atropos` and tells it the ring's name
($ROLLRING_RING does, too). Needs the Python package where the environment runs.)";

// The interpreter of the environment that this program is installed into, if it is.
std::string default_python() {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    const auto beside = program.parent_path() / "python3";
    return !error && ::access(beside.c_str(), X_OK) == 0 ? beside.string() : "python3";
}

int run_env(const std::string& python, std::vector<std::string> words) {
    if (words.empty()) {
        return fail(Errc::invalid_argument, "run-env needs the MODULE:CLASS of an environment");
    }
    words.insert(words.begin(), {python, "-m", "rollring.integrations.run_env"});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execvp(python.c_str(), arguments.data());
    return fail(Errc::not_found, fmt::format("cannot run {}: {}; say which with --python", python,
                                             std::strerror(errno)));
}

}  // namespace

Command add_run_env(CLI::App& app) {
    auto python = std::make_shared<std::string>(default_python());
    CLI::App* sub = app.add_subcommand(
        "run-env", "Run an environment of Atropos whose groups go into the ring");
    sub->footer(run_footer);
    sub->end_at_word();
    sub->add_option("--python", *python,
                    "Its interpreter; default: the one beside this\nprogram, else python3")
        ->type_name("PROGRAM");
    return {sub, [python, sub] { return run_env(*python, sub->rest()); }};
}

}  // namespace rollring::cli
