// rollring: one program for everything that people do with a ring. See `rollring --help`.

#include <unistd.h>

#include <exception>
#include <vector>

#include "cli/commands/command.hpp"
#include "cli/terminal/colour.hpp"
#include "rollring/version.hpp"

namespace {

using namespace rollring::cli;

// The first line is the NAME of the man page.
constexpr const char* description =
    R"(Move RL rollouts from generators to a trainer through shared memory

Rollouts are token trajectories of any length. They go from the processes that generate
them to the process that trains on them without copies and without loss.)";

constexpr const char* main_footer = R"(Try it:
  rollring demo                             # a complete run on a synthetic load
Step by step, with your own rollouts.jsonl:
  rollring create r --lanes 8 --lane-bytes 64MiB    # a ring for up to 8 producers
  rollring consume r --until-closed &               # the trainer's side
  rollring produce r --input rollouts.jsonl         # the rollout side, any number
  rollring stat r                                   # attached processes, fill level
  wait; rollring rm r
To look at while it runs: rollring top r (a live page), rollring groups r (which groups
a trainer waits for), rollring weights r (which weights the engines serve), rollring ls,
rollring doctor; for Prometheus: rollring metrics. How much memory a run needs:
rollring size.
For environments and trainers of Atropos, as they are: rollring serve-atropos r.
Exit codes: 0 done; 1 failed, which includes a report that could not be written;
2 wrong use; 130, 143 or 129 stopped by Ctrl-C, SIGTERM or the end of the terminal;
141 if the reader of stdout went away, as in `rollring stat r --watch | head`.
`rollring COMMAND --help` has the options of a command, their defaults, and examples.)";

// The command in the command line: fail() points to its help.
void note_command(const std::vector<Command>& commands) {
    for (const auto& command : commands) {
        if (command.app->parsed()) set_command("rollring " + command.app->get_name());
    }
}

int run(int argc, char** argv) {
    CLI::App app{description, "rollring"};
    app.footer(main_footer);
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string(rollring::version()));
    auto colour = ColourMode::automatic;
    add_choice(&app, "--color", colour,
               {{"auto", ColourMode::automatic},
                {"always", ColourMode::always},
                {"never", ColourMode::never}},
               "Before the command: colour the output; auto: on a terminal,\nunless NO_COLOR is "
               "set or TERM is \"dumb\"");
    const std::vector<Command> commands{
        add_create(app),  add_rm(app),      add_ls(app),      add_stat(app),
        add_doctor(app),  add_produce(app), add_consume(app), add_groups(app),
        add_weights(app), add_metrics(app), add_top(app),     add_serve_atropos(app),
        add_run_env(app), add_demo(app),    add_formats(app), add_size(app)};
    try {
        app.parse(argc, argv);
        set_colour_mode(colour);
    } catch (const CLI::ParseError& error) {
        set_colour_mode(colour);
        note_command(commands);
        if (error.get_exit_code() != 0) return fail(rollring::Errc::invalid_argument, error.what());
        print(painted_help(error.text(), STDOUT_FILENO));  // help, or the version
        return exit_ok;
    }
    note_command(commands);
    catch_interrupts();
    for (const auto& command : commands) {
        if (command.app->parsed()) return command.run();
    }
    return exit_usage;
}

}  // namespace

int main(int argc, char** argv) {
    guard_standard_streams();
    try {
        return code_after_writes(run(argc, argv));
    } catch (const std::exception& error) {
        return fail(rollring::Errc::system, std::string("unexpected: ") + error.what());
    }
}
