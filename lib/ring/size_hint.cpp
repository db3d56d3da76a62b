#include "size_hint.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "ring_geometry.hpp"
#include "rollring/ring.hpp"

namespace rollring::detail {
namespace {

// The limits of the options of `rollring size`.
constexpr std::uint64_t members_max = 65536;
constexpr std::uint64_t tokens_max = std::uint64_t{1} << 30;
constexpr std::uint64_t token_bytes_max = std::uint64_t{1} << 20;

std::uint64_t divided_up(std::uint64_t bytes, std::uint64_t by) {
    return bytes / by + (bytes % by != 0 ? 1 : 0);
}

}  // namespace

std::string size_hint(const Unfit& unfit) {
    constexpr std::uint64_t usual = RunShape{}.token_bytes;
    std::uint64_t tokens = unfit.tokens;
    // Few tokens with large columns: give the same bytes as a larger number of usual tokens.
    if (tokens == 0 || divided_up(unfit.record_bytes, tokens) > token_bytes_max) {
        tokens = divided_up(unfit.record_bytes, usual);
    }
    tokens = std::clamp<std::uint64_t>(tokens, 1, tokens_max);
    const std::uint64_t token_bytes =
        std::clamp<std::uint64_t>(divided_up(unfit.record_bytes, tokens), 1, token_bytes_max);
    std::string call = fmt::format("'rollring size --producers {}", unfit.producers);
    if (unfit.members != 0) {
        call += fmt::format(" --group {}", std::min(unfit.members, members_max));
    }
    return call + fmt::format(" --tokens {} --token-bytes {}'", tokens, token_bytes);
}

std::string option_bytes(std::uint64_t bytes) {
    constexpr std::uint64_t gib = 1 << 30;
    return bytes < 8 * gib ? fmt::format("{}MiB", divided_up(bytes, mib))
                           : fmt::format("{}GiB", divided_up(bytes, gib));
}

}  // namespace rollring::detail
