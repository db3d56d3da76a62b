// rollring: one program for everything that people do with a ring. See `rollring --help`.

#include <cstdio>
#include <exception>
#include <vector>

#include "cli/command.hpp"

namespace {

using namespace rollring::cli;

constexpr const char* description =
    "rollring moves RL rollouts (token trajectories of any length) from the processes that "
    "generate\n"
    "them to the process that trains on them, through shared memory, without copies and without "
    "loss.";

constexpr const char* footer =
    "Try it:\n"
    "  rollring demo                                   all of it at once, on a synthetic load\n"
    "Step by step:\n"
    "  rollring create r --lanes 8 --lane-bytes 64MiB  a ring for up to 8 producers\n"
    "  rollring consume r --until-closed &             the trainer's side\n"
    "  rollring produce r --input rollouts.jsonl       the rollout side, any number of them\n"
    "  rollring stat r --watch                         who is attached, how deep the lanes are\n"
    "  rollring consume r --group-size auto            ... on whole GRPO groups, in batches\n"
    "  rollring groups r                               which groups it waits for\n"
    "  rollring weights r                              which weights its engines serve\n"
    "  rollring rm r\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 130 or 143 stopped by Ctrl-C or SIGTERM.\n"
    "`rollring COMMAND --help` has the options of a command, their defaults, and examples.";

int run(int argc, char** argv) {
    CLI::App app{description, "rollring"};
    app.footer(footer);
    app.require_subcommand(1);
    app.set_version_flag("--version", ROLLRING_VERSION);
    const std::vector<Command> commands{
        add_create(app),  add_rm(app),      add_ls(app),     add_stat(app),    add_doctor(app),
        add_produce(app), add_consume(app), add_groups(app), add_weights(app), add_demo(app)};
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const bool asked = error.get_exit_code() == 0;
        static_cast<void>(std::fputs(error.text().c_str(), asked ? stdout : stderr));
        return asked ? exit_ok : exit_usage;
    }
    catch_interrupts();
    for (const auto& command : commands) {
        if (command.app->parsed()) return command.run();
    }
    return exit_usage;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        return fail(rollring::Errc::system, std::string("unexpected: ") + error.what());
    }
}
