#pragma once
// Commands that the Python package executes: this process becomes its interpreter.

#include <string>
#include <vector>

#include "cli/commands/command.hpp"

namespace rollring::cli {

// The interpreter of the environment that contains this program, if there is one; otherwise
// python3.
std::string default_python();
CLI::Option* add_python(CLI::App* app, std::string& python);
// `python -m module words...`; returns only if that failed: there is no such interpreter, or it
// lacks one of `packages`, which are names as in `import`.
int become_python(const std::string& python, const std::string& module,
                  std::vector<std::string> words,
                  const std::vector<std::string>& packages = {"rollring"});

}  // namespace rollring::cli
