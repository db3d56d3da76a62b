#include "cli/commands/door.hpp"

#include <fmt/core.h>

namespace rollring::cli {

Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token) {
    auto listener = Listener::open(host, port);
    if (!listener || listener->loopback() || !token.empty()) return listener;
    return refused(
        Errc::invalid_argument,
        fmt::format("{} can be reached from other machines: require a --token, or listen "
                    "on 127.0.0.1",
                    host));
}

}  // namespace rollring::cli
