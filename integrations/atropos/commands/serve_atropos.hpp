#pragma once
// `rollring serve-atropos`: its options.

#include <cstdint>
#include <string>

#include "cli/commands/command.hpp"
#include "cli/http/http_limits.hpp"
#include "integrations/atropos/atropos_hub.hpp"

namespace rollring::cli {

struct ServeOptions {
    AtroposHubOptions hub;
    std::string host = "127.0.0.1";
    std::uint32_t port = 8000;
    std::string token;
    HttpLimits limits;
    std::uint64_t lane_bytes = bytes_not_given;
    bool json = false;
    bool keep = false;
};

// Serves until an interrupt, and returns the exit code.
int serve_atropos(const ServeOptions& options);

}  // namespace rollring::cli
