#include "cli/commands/in_python.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace rollring::cli {

std::string default_python() {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    const auto beside = program.parent_path() / "python3";
    return !error && ::access(beside.c_str(), X_OK) == 0 ? beside.string() : "python3";
}

CLI::Option* add_python(CLI::App* app, std::string& python) {
    return app
        ->add_option("--python", python,
                     "Its interpreter; default: the one beside this\nprogram, else python3")
        ->type_name("PROGRAM");
}

int become_python(const std::string& python, const std::string& module,
                  std::vector<std::string> words) {
    words.insert(words.begin(), {python, "-m", module});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execvp(python.c_str(), arguments.data());
    return fail(Errc::not_found, fmt::format("cannot run {}: {}; say which with --python", python,
                                             std::strerror(errno)));
}

}  // namespace rollring::cli
