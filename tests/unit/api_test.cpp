// The names and values that programs and other processes rely on: a new one is added at the end.
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "doctest/doctest.h"
#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/version.hpp"

using namespace rollring;
using namespace std::chrono_literals;

TEST_CASE("api: an error's number never changes its meaning") {
    constexpr std::array<std::string_view, 40> frozen{
        "",
        "invalid_argument",
        "already_exists",
        "not_found",
        "not_ready",
        "not_a_ring",
        "abi_mismatch",
        "permission_denied",
        "not_enough_shared_memory",
        "busy",
        "no_free_lane",
        "journal_full",
        "bad_record",
        "timed_out",
        "peer_gone",
        "expelled",
        "stale_version",
        "layout_mismatch",
        "bad_manifest",
        "rejected",
        "aborted",
        "checksum_mismatch",
        "unsupported",
        "no_gpu",
        "no_peer_access",
        "device_error",
        "out_of_device_memory",
        "host_memory",
        "already_released",
        "not_released",
        "forked",
        "not_leased",
        "system",
        "closed",
        "too_large",
        "stale_ticket",
        "store_full",
        "not_stored",
        "ledger_failed",
        "rollback_asked",
    };
    for (std::uint32_t number = 0; number < frozen.size(); number++) {
        CHECK(name(static_cast<Errc>(number)) == frozen[number]);
    }
    CHECK(name(static_cast<Errc>(frozen.size())).empty());  // a new code joins the table above
    CHECK(name(static_cast<Errc>(~0U)).empty());
}

TEST_CASE("api: the version of the headers is the library's and the build's") {
    CHECK(version() == ROLLRING_VERSION);
    CHECK(version() == std::to_string(ROLLRING_VERSION_MAJOR) + "." +
                           std::to_string(ROLLRING_VERSION_MINOR) + "." +
                           std::to_string(ROLLRING_VERSION_PATCH));
    CHECK(version() == PROJECT_VERSION);
    CHECK(layout_version() > 0);
}

TEST_CASE("api: a deadline that lies beyond the clock is never") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK(!Deadline::never().passed());
    CHECK(Deadline::after(std::chrono::nanoseconds::max()).at_ns == Deadline::never().at_ns);
    CHECK(Deadline::after_ms(most).at_ns == Deadline::never().at_ns);
    CHECK(Deadline::after_ns(most).at_ns == Deadline::never().at_ns);
    CHECK(Deadline::now().passed());
    CHECK(Deadline::after(-1h).passed());
    CHECK(Deadline::after_ms(std::numeric_limits<std::int64_t>::min()).passed());
    CHECK(!Deadline::after(24h).passed());
}
