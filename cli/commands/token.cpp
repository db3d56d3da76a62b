#include "cli/commands/token.hpp"

#include <cstdlib>
#include <string>

namespace rollring::cli {

std::string token_of(const std::string& option) {
    if (!option.empty()) return option;
    const char* token = std::getenv("ROLLRING_TOKEN");
    return token != nullptr ? token : "";
}

CLI::Option* add_token(CLI::App* app, std::string& token) {
    // A shell makes an empty word of a variable that is not set, and then everybody could read.
    const auto set = [&token](const std::string& given) {
        if (given.empty())
            throw CLI::ValidationError("--token",
                                       "'' is not a token: give one, or leave the option out");
        token = given;
    };
    return app
        ->add_option_function<std::string>(
            "--token", set,
            "Token that clients must send (Authorization: Bearer TOKEN);\n"
            "default: $ROLLRING_TOKEN, which other users cannot see")
        ->type_name("TOKEN");
}

}  // namespace rollring::cli
