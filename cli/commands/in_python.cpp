#include "cli/commands/in_python.hpp"

#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "cli/commands/program.hpp"

namespace rollring::cli {
namespace {

std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> made;
    made.reserve(words.size() + 1);
    for (std::string& word : words) made.push_back(word.data());
    made.push_back(nullptr);
    return made;
}

Error not_run(const std::string& python, int error) {
    return {Errc::not_found, 0,
            fmt::format("cannot run the Python interpreter {}: {}; name another one with --python",
                        python, std::generic_category().message(error))};
}

// An interpreter without rollring is often the system's, which has no pip: a virtual environment
// works everywhere. An interpreter with rollring has pip.
std::string remedy(const std::string& python, const std::string& package, bool is_for_top) {
    const std::string install =
        package == "rollring"
            ? fmt::format(
                  "in a clone of rollring, run 'python3 -m venv .venv && "
                  ".venv/bin/pip install -v {}', and pass --python .venv/bin/python",
                  is_for_top ? "\".[top]\"" : ".")
            : fmt::format(
                  "run '{} -m pip install {}', or name an interpreter that has it with "
                  "--python",
                  python, package);
    return fmt::format("the Python package {} is not installed for {}: {}", package, python,
                       install);
}

// Asks the interpreter, without importing anything: the first missing package, or nothing. A folder
// of that name in the current directory, such as a clone, has no origin.
Result<std::string> missing_package(const std::string& python,
                                    const std::vector<std::string>& packages) {
    constexpr const char* question =
        "import importlib.util as u, sys\n"
        "has = lambda p: getattr(u.find_spec(p), 'origin', None) is not None\n"
        "sys.exit(next((i for i, p in enumerate(sys.argv[1:], 100) if not has(p)), 0))";
    std::vector<std::string> words{python, "-c", question};
    words.insert(words.end(), packages.begin(), packages.end());
    std::vector<char*> arguments = pointers(words);
    pid_t child = 0;
    const int error =
        ::posix_spawnp(&child, python.c_str(), nullptr, nullptr, arguments.data(), environ);
    if (error != 0) return std::unexpected(not_run(python, error));
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR && !interrupted()) {
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) - 100 : -1;
    const bool named = code >= 0 && static_cast<std::size_t>(code) < packages.size();
    return named ? packages[static_cast<std::size_t>(code)] : std::string();
}

}  // namespace

std::string default_python() {
    const std::string beside = path_beside("python3");
    return ::access(beside.c_str(), X_OK) == 0 ? beside : "python3";
}

CLI::Option* add_python(CLI::App* app, std::string& python) {
    return app
        ->add_option("--python", python,
                     "Python interpreter; default: the one beside this\nprogram, else python3")
        ->type_name("PROGRAM");
}

int become_python(const std::string& python, const std::string& module,
                  std::vector<std::string> words, const std::vector<std::string>& packages) {
    const auto missing = missing_package(python, packages);
    if (!missing) return fail(missing.error());
    const bool is_for_top = packages.size() > 1;
    if (!missing->empty()) return fail(Errc::not_found, remedy(python, *missing, is_for_top));
    words.insert(words.begin(), {python, "-m", module});
    std::vector<char*> arguments = pointers(words);
    ::execvp(python.c_str(), arguments.data());
    return fail(not_run(python, errno));
}

}  // namespace rollring::cli
