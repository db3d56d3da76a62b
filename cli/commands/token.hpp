#pragma once
// The token that clients of a serving command send.

#include <string>

#include "cli/commands/command.hpp"

namespace rollring::cli {

CLI::Option* add_token(CLI::App* app, std::string& token);
// From --token or else from $ROLLRING_TOKEN, which other users cannot see. Empty: none.
std::string token_of(const std::string& option);

}  // namespace rollring::cli
