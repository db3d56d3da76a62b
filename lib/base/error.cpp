#include "rollring/error.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace rollring {

// A table; -Wswitch says which name it lacks.
std::string_view name(Errc code) {  // NOLINT(readability-function-size)
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
        case Errc::journal_full:
            return "journal_full";
        case Errc::bad_record:
            return "bad_record";
        case Errc::timed_out:
            return "timed_out";
        case Errc::peer_gone:
            return "peer_gone";
        case Errc::expelled:
            return "expelled";
        case Errc::stale_version:
            return "stale_version";
        case Errc::layout_mismatch:
            return "layout_mismatch";
        case Errc::bad_manifest:
            return "bad_manifest";
        case Errc::rejected:
            return "rejected";
        case Errc::aborted:
            return "aborted";
        case Errc::checksum_mismatch:
            return "checksum_mismatch";
        case Errc::unsupported:
            return "unsupported";
        case Errc::no_gpu:
            return "no_gpu";
        case Errc::no_peer_access:
            return "no_peer_access";
        case Errc::device_error:
            return "device_error";
        case Errc::out_of_device_memory:
            return "out_of_device_memory";
        case Errc::host_memory:
            return "host_memory";
        case Errc::already_released:
            return "already_released";
        case Errc::not_released:
            return "not_released";
        case Errc::forked:
            return "forked";
        case Errc::not_leased:
            return "not_leased";
        case Errc::system:
            return "system";
        case Errc::closed:
            return "closed";
        case Errc::too_large:
            return "too_large";
        case Errc::stale_ticket:
            return "stale_ticket";
        case Errc::store_full:
            return "store_full";
        case Errc::not_stored:
            return "not_stored";
        case Errc::ledger_failed:
            return "ledger_failed";
        case Errc::rollback_asked:
            return "rollback_asked";
    }
    return {};
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
