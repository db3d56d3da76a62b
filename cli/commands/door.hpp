#pragma once
// The address of a serving command, and its clients: those from other machines need a token.

#include <string>

#include "cli/commands/command.hpp"
#include "cli/http/socket.hpp"

namespace rollring::cli {

// Errc::invalid_argument if other machines can reach it and there is no token.
Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token);

}  // namespace rollring::cli
