// Rings that go with their owner: the objects that are left when its process ends.

#include <doctest/doctest.h>

#include <algorithm>

#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

const RingOptions small{.lanes = 1, .lane_bytes = 64 << 10};

bool listed(const std::string& name) {
    const auto rings = list_rings();
    return std::ranges::find(rings, name) != rings.end();
}

OwnedRing owned(const std::string& name) {
    auto made = OwnedRing::create(name, small);
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().to_string()));
    return std::move(*made);
}

// A process that owns a ring, has sent a record into it, and sleeps.
pid_t start_owner(const std::string& name) {
    return start_child([&] {
        const OwnedRing ring = owned(name);
        auto producer = Producer::open(name);
        if (!producer || send(*producer) != Push::ok) return 1;
        for (;;) pause();
    });
}

}  // namespace

TEST_CASE("owner: a ring goes with its owner's object, whoever is attached") {
    const std::string name = scratch_name("owned");
    {
        const OwnedRing ring = owned(name);
        CHECK(ring.name() == name);
        const auto found = diagnose_ring(name);
        CHECK((found.health == RingHealth::ok && found.in_use && !found.orphaned));
        CHECK(remove_ring(name).error().code == Errc::busy);
        remove_orphaned_rings();
        CHECK(listed(name));
        REQUIRE(Producer::open(name).has_value());
    }
    CHECK_FALSE(listed(name));
}

TEST_CASE("owner: a moved owner removes its ring once, and a forked child never") {
    const std::string name = scratch_name("owned");
    OwnedRing first = owned(name);
    CHECK(in_child([&] {
              const OwnedRing inherited = std::move(first);
              return 0;
          }) == 0);
    CHECK(listed(name));
    {
        const OwnedRing second = std::move(first);
        CHECK(listed(name));
    }
    CHECK_FALSE(listed(name));
}

TEST_CASE("owner: the ring of a killed owner goes when no process uses it, records included") {
    const std::string name = scratch_name("owned");
    const pid_t owner = start_owner(name);
    // Attached before the owner dies: the ring stays as long as this consumer is there, whatever
    // other processes of this user sweep meanwhile.
    auto consumer =
        std::optional(Consumer::open(name, {.attach_timeout = std::chrono::seconds(60)}));
    REQUIRE(consumer->has_value());
    Record record;
    REQUIRE((*consumer)->wait(record, patience()) == Poll::record);
    CHECK_FALSE(diagnose_ring(name).orphaned);
    kill_and_collect(owner);
    const auto found = diagnose_ring(name);
    CHECK((found.health == RingHealth::ok && found.in_use && found.orphaned && found.has_records));
    remove_orphaned_rings();
    CHECK(listed(name));
    consumer.reset();
    const OwnedRing next = owned(scratch_name("next"));  // sweeps
    CHECK_FALSE(listed(name));
}

TEST_CASE("owner: a ring without an owner is never an orphan") {
    const TestRing ring(small);
    {
        REQUIRE(Consumer::open(ring.name()).has_value());
    }
    CHECK_FALSE(diagnose_ring(ring.name()).orphaned);
    remove_orphaned_rings();
    CHECK(listed(ring.name()));
}
