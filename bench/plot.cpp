// Charts of JSON results: bench/plot.py does it.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "bench.hpp"

namespace bench {
namespace {

struct Options {
    std::string input = "bench-results";
    std::string output;
    std::string format = "svg";
    std::string python = "python3";
    std::string script = ROLLRING_PLOT_SCRIPT;
};

void run(const Options& options) {
    const std::string& output = options.output.empty() ? options.input : options.output;
    const pid_t pid = fork();
    if (pid < 0) fail("fork failed");
    if (pid == 0) {
        execlp(options.python.c_str(), options.python.c_str(), options.script.c_str(), "--input",
               options.input.c_str(), "--output", output.c_str(), "--format",
               options.format.c_str(), nullptr);
        _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (ended == 127) fail(fmt::format("'{}' cannot be run", options.python));
    if (ended != 0) std::exit(ended);  // the script has said why
}

}  // namespace

void add_plot(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("plot", "charts of JSON results (needs matplotlib)");
    sub->add_option("--input", options->input, "folder with JSON results")->capture_default_str();
    sub->add_option("--output", options->output, "folder for the charts; default: the input's");
    sub->add_option("--format", options->format, "svg or png")
        ->capture_default_str()
        ->check(CLI::IsMember({"svg", "png"}));
    sub->add_option("--python", options->python, "interpreter")
        ->envname("ROLLRING_PYTHON")
        ->capture_default_str();
    sub->callback([options] { run(*options); });
}

}  // namespace bench
