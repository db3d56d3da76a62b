// `rollring top`.

#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands/command.hpp"
#include "cli/commands/in_python.hpp"

namespace rollring::cli {
namespace {

constexpr const char* top_footer = R"(Examples:
  rollring top r
  rollring top r --every 0.2
  rollring top r --tokenizer model/ --keep 5000
The page has lanes and producers, incomplete groups and the producers that they wait for,
tokens per second, policy versions and engines. Keys: q quits, p pauses, s sorts the
table, tab selects the next table, arrows, j and k select a row. Enter opens the selected
group, also after the trainer has taken it: its members with rewards and advantages, and
a member's text, or its token IDs without --tokenizer. If the ring does not exist, the
command waits for it. It only reads. It needs a terminal and the Python packages rollring
and textual. In scripts, use `rollring stat --json` or `rollring stat --watch`.)";

struct TopOptions {
    std::string ring;
    std::string every = "1";
    std::string tokenizer;
    std::string keep;
    std::string keep_bytes;
    std::string python = default_python();
};

// textual paints to stderr, and reads keys from stdin.
bool on_a_terminal() {
    return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0 &&
           ::isatty(STDERR_FILENO) != 0;
}

int top(const TopOptions& options) {
    if (!on_a_terminal()) {
        return fail(Errc::invalid_argument,
                    fmt::format("top needs a terminal; for a file or a pipe use 'rollring stat {0} "
                                "--json' or 'rollring stat {0} --watch'",
                                options.ring));
    }
    std::vector<std::string> words{"--every", options.every};
    const auto add = [&](const char* name, const std::string& value) {
        if (!value.empty()) words.insert(words.end(), {name, value});
    };
    add("--tokenizer", options.tokenizer);
    add("--keep", options.keep);
    add("--keep-bytes", options.keep_bytes);
    words.insert(words.end(), {"--", options.ring});
    return become_python(options.python, "rollring.top", words, {"rollring", "textual"});
}

}  // namespace

Command add_top(CLI::App& app) {
    auto options = std::make_shared<TopOptions>();
    CLI::App* sub = app.add_subcommand("top", "Show a live page of a ring in the terminal");
    sub->footer(top_footer);
    add_ring_name(sub, options->ring);
    sub->add_option("--every", options->every, "Interval between two updates")
        ->check(CLI::PositiveNumber)
        ->type_name("SECONDS")
        ->capture_default_str();
    sub->add_option("--tokenizer", options->tokenizer,
                    "tokenizer.json or its folder, for text in place of token IDs")
        ->type_name("PATH");
    sub->add_option("--keep", options->keep,
                    "Groups that can be opened after the trainer has taken them; by default 1000")
        ->check(CLI::PositiveNumber)
        ->type_name("GROUPS");
    sub->add_option("--keep-bytes", options->keep_bytes, "Their bytes at most; by default 512 MiB")
        ->check(CLI::PositiveNumber)
        ->type_name("BYTES");
    add_python(sub, options->python);
    return {sub, [options] { return top(*options); }};
}

}  // namespace rollring::cli
