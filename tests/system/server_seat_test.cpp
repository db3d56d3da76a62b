// The seat of a ring's server, and its end with its process.

#include "rollring/extras/server_seat.hpp"

#include <doctest/doctest.h>

#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("server: one process at a time has a ring's seat, and death frees it") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    const auto seat_is_taken = [&] {
        const auto other = ServerSeat::take(ring.name());
        return !other && other.error().code == Errc::busy;
    };
    {
        const auto seat = ServerSeat::take(ring.name());
        REQUIRE(seat.has_value());
        CHECK(in_child([&] { return seat_is_taken() ? 0 : 1; }) == 0);
        CHECK(remove_ring(ring.name()).error().code == Errc::busy);
    }
    CHECK(in_child([&] { return ServerSeat::take(ring.name()) ? 0 : 1; }) == 0);
    CHECK(ServerSeat::take(ring.name()).has_value());
    CHECK(ServerSeat::take(scratch_name("none")).error().code == Errc::not_found);
}
