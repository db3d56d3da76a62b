#pragma once
// Python beside us: a script that prints JSON objects, a line each.

#include <string>
#include <vector>

#include "report.hpp"

namespace bench {

struct ScriptOutput {
    int status = -1;  // its exit status; -1: it was not started, or a signal ended it
    std::vector<Json> objects;

    [[nodiscard]] Json last() const { return objects.empty() ? Json() : objects.back(); }
};

// Lines without a JSON object are output of libraries, and are left out.
ScriptOutput run_script(const std::string& command);

}  // namespace bench
