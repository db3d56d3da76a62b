#include "cli/commands/door.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace rollring::cli {

std::string token_of(const std::string& option) {
    if (!option.empty()) return option;
    const char* token = std::getenv("ROLLRING_TOKEN");
    return token != nullptr ? token : "";
}

Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token) {
    auto listener = Listener::open(host, port);
    if (!listener || listener->loopback() || !token.empty()) return listener;
    return refused(
        Errc::invalid_argument,
        fmt::format("{} can be reached from other machines: require a --token, or listen "
                    "on 127.0.0.1",
                    host));
}

CLI::Option* add_token(CLI::App* app, std::string& token) {
    return app
        ->add_option("--token", token,
                     "Token that clients must send (Authorization: Bearer TOKEN);\n"
                     "default: $ROLLRING_TOKEN, which other users cannot see")
        ->type_name("TOKEN");
}

}  // namespace rollring::cli
