#pragma once
// Where a command that serves listens, and who may ask it: whoever can reach the machine from
// elsewhere has to say a token.

#include <string>

#include "cli/commands/command.hpp"
#include "cli/serve/socket.hpp"

namespace rollring::cli {

// Of --token, or else of $ROLLRING_TOKEN, which other users cannot see. Empty: none.
std::string token_of(const std::string& option);
// Errc::invalid_argument where it can be reached from other machines and there is no token.
Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token);
CLI::Option* add_token(CLI::App* app, std::string& token);

}  // namespace rollring::cli
