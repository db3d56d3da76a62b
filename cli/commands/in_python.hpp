#pragma once
// Commands whose work is done by the Python package: this process becomes its interpreter.

#include <string>
#include <vector>

#include "cli/commands/command.hpp"

namespace rollring::cli {

// The interpreter of the environment that this program is installed into, if it is; else python3.
std::string default_python();
CLI::Option* add_python(CLI::App* app, std::string& python);
// `python -m module words...`; returns only if that failed: there is no such interpreter, or it has
// not one of `packages`, which are names as in `import`.
int become_python(const std::string& python, const std::string& module,
                  std::vector<std::string> words,
                  const std::vector<std::string>& packages = {"rollring"});

}  // namespace rollring::cli
