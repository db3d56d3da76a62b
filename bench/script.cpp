#include "script.hpp"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <sstream>

namespace bench {

ScriptOutput run_script(const std::string& command) {
    ScriptOutput output;
    std::FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return output;
    std::string text;
    std::array<char, 4096> buffer{};
    while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
        text.append(buffer.data(), got);
    }
    const int status = pclose(pipe);
    output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        Json object = Json::parse(line, nullptr, false);
        if (object.is_object()) output.objects.push_back(std::move(object));
    }
    return output;
}

}  // namespace bench
