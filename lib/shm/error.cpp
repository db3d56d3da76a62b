#include "rollring/error.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace rollring {

std::string_view name(Errc code) {
    switch (code) {
        case Errc::invalid_argument:
            return "invalid_argument";
        case Errc::already_exists:
            return "already_exists";
        case Errc::not_found:
            return "not_found";
        case Errc::not_ready:
            return "not_ready";
        case Errc::not_a_ring:
            return "not_a_ring";
        case Errc::abi_mismatch:
            return "abi_mismatch";
        case Errc::permission_denied:
            return "permission_denied";
        case Errc::not_enough_shared_memory:
            return "not_enough_shared_memory";
        case Errc::busy:
            return "busy";
        case Errc::no_free_lane:
            return "no_free_lane";
        case Errc::record_too_large:
            return "record_too_large";
        case Errc::journal_full:
            return "journal_full";
        case Errc::bad_record:
            return "bad_record";
        case Errc::system:
            return "system";
    }
    return "unknown";
}

std::string Error::to_string() const {
    if (system_errno == 0) return fmt::format("{}: {}", name(code), message);
    return fmt::format("{}: {} ({})", name(code), message,
                       std::generic_category().message(system_errno));
}

void assertion_failed(const char* file, int line, const char* what, std::string_view values) {
    fmt::print(stderr, "{}:{}: rollring assertion failed: {} [{}]\n", file, line, what, values);
    static_cast<void>(std::fflush(stderr));
    std::abort();
}

}  // namespace rollring
