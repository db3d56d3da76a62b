#include "cli/commands/passed_on.hpp"

#include "cli/commands/program.hpp"

namespace rollring::cli {

Command pass_on(CLI::App& app, const PassedOn& line) {
    CLI::App* sub = app.add_subcommand(line.name, line.summary);
    sub->leave_all_words();
    return {sub, [&line] { return become_program(line.program); }};
}

}  // namespace rollring::cli
