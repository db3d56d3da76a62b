#pragma once
// The address of a serving command, and its clients: those from other machines need a token.

#include <string>

#include "cli/commands/command.hpp"
#include "cli/http/socket.hpp"

namespace rollring::cli {

// Errc::invalid_argument if other machines can reach it and there is no token. `other_port`: the
// option for another port, which the error for a port in use names.
Result<Listener> open_door(const std::string& host, std::uint16_t port, const std::string& token,
                           std::string_view other_port);

}  // namespace rollring::cli
