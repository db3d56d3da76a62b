#include "cli/commands/token.hpp"

#include <cstdlib>

namespace rollring::cli {

std::string token_of(const std::string& option) {
    if (!option.empty()) return option;
    const char* token = std::getenv("ROLLRING_TOKEN");
    return token != nullptr ? token : "";
}

CLI::Option* add_token(CLI::App* app, std::string& token) {
    return app
        ->add_option("--token", token,
                     "Token that clients must send (Authorization: Bearer TOKEN);\n"
                     "default: $ROLLRING_TOKEN, which other users cannot see")
        ->type_name("TOKEN");
}

}  // namespace rollring::cli
