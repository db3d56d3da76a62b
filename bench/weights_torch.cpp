// The same sync, as it is done with torch: bench/torch_sync.py.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "weights_report.hpp"

namespace bench {

std::vector<TorchRow> run_torch(const std::string& script, const std::string& list_file, int repeat,
                                int gpu) {
    const std::string command = fmt::format("python3 '{}' --list '{}' --repeat {} --gpu {}", script,
                                            list_file, repeat, gpu);
    std::FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) fail("python3 cannot be started");
    std::string text;
    std::array<char, 4096> buffer{};
    while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
        text.append(buffer.data(), got);
    }
    const int status = pclose(pipe);
    if (status != 0) {
        unlink(list_file.c_str());  // fail() ends the program here
        fail(fmt::format("{} ended with {} (77: torch or a GPU is missing): {}", command,
                         WIFEXITED(status) ? WEXITSTATUS(status) : -1, text));
    }
    std::vector<TorchRow> rows;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const Json row = Json::parse(text.substr(at, end - at), nullptr, false);
        at = end + 1;
        if (!row.is_object()) continue;
        rows.push_back({row["method"].get<std::string>(), row["ms"].get<double>(),
                        row["bytes"].get<std::uint64_t>()});
    }
    if (rows.empty()) fail(fmt::format("{} measured nothing", command));
    return rows;
}

}  // namespace bench
