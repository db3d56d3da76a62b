// `rollring view`.

#include <cstdlib>
#include <memory>

#include "cli/commands/command.hpp"
#include "cli/commands/in_python.hpp"
#include "cli/commands/token.hpp"

namespace rollring::cli {
namespace {

constexpr const char* view_footer = R"(Examples:
  rollring view r
  rollring view rollouts.jsonl --tokenizer model/
  rollring view r --port 0 --keep 5000
  rollring view runs/42
  rollring view runs/42.ledger
The page shows groups as they form, their members side by side, and each token of a
member, coloured by a column. Without --tokenizer it shows token IDs. It only reads: the
run does not notice it. If the ring does not exist, the page waits for it. Of a ledger it
shows the records that no checkpoint has, as they are when it opens. --host with
another address than this machine's own needs the token of the printed address, which is
made if none is given. The Python package rollring must be installed.)";

struct ViewOptions {
    std::string source;
    std::string port = "8420";
    std::string host = "127.0.0.1";
    std::string token;
    std::string tokenizer;
    std::string keep;
    std::string keep_bytes;
    bool json = false;
    std::string python = default_python();
};

std::vector<std::string> words_of(const ViewOptions& options) {
    std::vector<std::string> words{"--port", options.port, "--host", options.host};
    const auto add = [&](const char* name, const std::string& value) {
        if (!value.empty()) words.push_back(std::string(name) + "=" + value);
    };
    add("--tokenizer", options.tokenizer);
    add("--keep", options.keep);
    add("--keep-bytes", options.keep_bytes);
    if (options.json) words.emplace_back("--json");
    words.emplace_back("--");
    words.push_back(options.source);
    return words;
}

// In the environment: all users of the machine see the arguments of a process.
void pass_on(const std::string& token) {
    if (token.empty()) return;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the program has one thread
    ::setenv("ROLLRING_TOKEN", token.c_str(), 1);
}

}  // namespace

Command add_view(CLI::App& app) {
    auto options = std::make_shared<ViewOptions>();
    CLI::App* sub = app.add_subcommand("view", "Show rollouts on a page in the browser");
    sub->footer(view_footer);
    sub->add_option("source", options->source,
                    "Name of a ring, a file of rollouts, a recording, or a ledger")
        ->required()
        ->type_name("RING|FILE|LEDGER");
    sub->add_option("--port", options->port, "Port of the page, 0 for any free one")
        ->check(CLI::Range(0, 65535))
        ->type_name("PORT")
        ->capture_default_str();
    sub->add_option("--host", options->host, "Address at which the page is served")
        ->type_name("ADDRESS")
        ->capture_default_str();
    add_token(sub, options->token);
    sub->add_option("--tokenizer", options->tokenizer,
                    "tokenizer.json, or a folder of transformers: shows text instead of IDs")
        ->type_name("PATH");
    sub->add_option("--keep", options->keep,
                    "Groups that the page keeps: by default 1000 of a ring, else 10000")
        ->check(CLI::PositiveNumber)
        ->type_name("GROUPS");
    sub->add_option("--keep-bytes", options->keep_bytes, "Their bytes at most; by default 2 GiB")
        ->check(CLI::PositiveNumber)
        ->type_name("BYTES");
    sub->add_flag("--json", options->json, "Print the address as JSON");
    add_python(sub, options->python);
    return {sub, [options] {
                pass_on(options->token);
                return become_python(options->python, "rollring.view", words_of(*options));
            }};
}

}  // namespace rollring::cli
