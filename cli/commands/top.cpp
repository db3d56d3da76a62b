// `rollring top`.

#include <memory>

#include "cli/commands/command.hpp"
#include "cli/commands/in_python.hpp"

namespace rollring::cli {
namespace {

constexpr const char* top_footer = R"(Examples:
  rollring top r
  rollring top r --every 0.2
A page in the terminal: lanes and producers, groups that wait and for whom, tokens per
second, versions, engines. Keys: q quit, p pause, s sort the table, tab the next table,
enter explain the group. A ring that is not there yet, or goes, is waited for. Takes no
part in the ring. Needs the Python package with textual: pip install 'rollring[top]'.)";

struct TopOptions {
    std::string ring;
    std::string every = "1";
    std::string python = default_python();
};

}  // namespace

Command add_top(CLI::App& app) {
    auto options = std::make_shared<TopOptions>();
    CLI::App* sub = app.add_subcommand("top", "A live page of a ring in the terminal");
    sub->footer(top_footer);
    add_ring_name(sub, options->ring);
    sub->add_option("--every", options->every, "Between two looks")
        ->check(CLI::PositiveNumber)
        ->type_name("SECONDS")
        ->capture_default_str();
    add_python(sub, options->python);
    return {sub, [options] {
                return become_python(options->python, "rollring.top",
                                     {"--every", options->every, "--", options->ring});
            }};
}

}  // namespace rollring::cli
