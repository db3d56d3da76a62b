#include "cli/commands/program.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <system_error>

#include "cli/terminal/colour.hpp"
#include "rollring/version.hpp"

namespace rollring::cli {
namespace {

char** arguments = nullptr;  // of this process

// The command in the command line: fail() points to its help.
void note_command(const std::vector<Command>& commands) {
    for (const auto& command : commands) {
        if (command.app->parsed()) set_command("rollring " + command.app->get_name());
    }
}

int run(const Program& program, int argc, char** argv) {
    CLI::App app{program.description, "rollring"};
    app.footer(program.footer);
    app.require_subcommand(1);
    app.set_version_flag("--version", std::string(version()));
    auto colour = ColourMode::automatic;
    add_choice(&app, "--color", colour,
               {{"auto", ColourMode::automatic},
                {"always", ColourMode::always},
                {"never", ColourMode::never}},
               "Before the command: colour the output; auto: on a terminal,\nunless NO_COLOR is "
               "set or TERM is \"dumb\"");
    std::vector<Command> commands;
    commands.reserve(program.commands.size());
    for (const auto& add : program.commands) commands.push_back(add(app));
    try {
        app.parse(argc, argv);
        set_colour_mode(colour);
    } catch (const CLI::ParseError& error) {
        set_colour_mode(colour);
        note_command(commands);
        if (error.get_exit_code() != 0) return fail(Errc::invalid_argument, error.what());
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

int run_program(const Program& program, int argc, char** argv) {
    arguments = argv;
    guard_standard_streams();
    try {
        return code_after_writes(run(program, argc, argv));
    } catch (const std::exception& error) {
        return fail(Errc::system, std::string("unexpected: ") + error.what());
    }
}

std::string path_beside(const std::string& name) {
    std::array<char, PATH_MAX> self{};
    const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size());
    const std::string_view path(self.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    return std::string(path.substr(0, path.rfind('/') + 1)) + name;
}

int become_program(const char* beside) {
    const std::string path = path_beside(beside);
    // This process answers signals that came until now. A later one ends it, or reaches the next
    // program.
    release_interrupts();
    if (interrupted()) return interrupt_exit();
    ::execv(path.c_str(), arguments);
    return fail(
        Errc::not_found,
        fmt::format("this command cannot run the program {}: {} (in a clone, './dev build' builds "
                    "it)",
                    path, std::generic_category().message(errno)));
}

}  // namespace rollring::cli
