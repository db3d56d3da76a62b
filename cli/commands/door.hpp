#pragma once
// Where a command that serves listens, and who may ask it: whoever can reach the machine from
// elsewhere has to say a token.

#include <string>

#include "cli/commands/command.hpp"
#include "cli/http/socket.hpp"

namespace rollring::cli {

// Errc::invalid_argument where it can be reached from other machines and there is no token.
Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token);

}  // namespace rollring::cli
