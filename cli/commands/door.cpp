#include "cli/commands/door.hpp"

#include <fmt/core.h>

namespace rollring::cli {

Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token,
                           std::string_view other_port) {
    auto listener = Listener::open(host, port);
    if (!listener && listener.error().code == Errc::busy) {
        return refused(Errc::busy, fmt::format("{}; choose another port with {}",
                                               listener.error().message, other_port));
    }
    if (!listener || listener->loopback() || !token.empty()) return listener;
    return refused(Errc::invalid_argument,
                   fmt::format("{} can be reached from other machines: pass --token, or listen on "
                               "127.0.0.1",
                               host));
}

}  // namespace rollring::cli
