// A ring that is removed while another process attaches to it, waits for a lane of it, or idles on
// it.
#include <doctest/doctest.h>

#include <sys/socket.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "channel_names.hpp"
#include "liveness.hpp"
#include "ring_map.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::TestRing;

namespace {

const RingOptions small = {.lanes = 1, .lane_bytes = 64 << 10};

std::uint64_t id_of(const std::string& ring) {
    const auto stat = stat_ring(ring);
    REQUIRE(stat.has_value());
    return stat->ring_id;
}

void unlink_ring(const Segment& segment) {
    REQUIRE(std::filesystem::remove("/dev/shm" + segment.name()));
}

// Runs `open` between the two steps of a remover, which has looked for live processes before it,
// and unlinks the name afterwards.
template <class Open>
void slip_in(LifeByte byte, const Open& open) {
    const TestRing ring(small);
    auto segment = Segment::attach(ring.name(), Deadline::now());
    REQUIRE(segment.has_value());
    const std::uint64_t old = id_of(ring.name());
    std::optional<LifeLock> remover;
    {
        auto lock = LifeLock::take(segment->fd(), LifeByte::creation());
        REQUIRE(lock.has_value());
        REQUIRE(lock->has_value());
        remover = std::move(*lock);
    }
    std::thread attacher([&] { open(ring.name(), old); });
    const Deadline deadline = patience();
    while (!alive(segment->fd(), byte) && !deadline.passed()) std::this_thread::yield();
    unlink_ring(*segment);
    CHECK(create_ring(ring.name(), small).has_value());
    remover.reset();
    attacher.join();
}

}  // namespace

TEST_CASE("removal: who attaches while the ring is being removed gets the next one of that name") {
    slip_in(LifeByte::lane(0), [](const std::string& ring, std::uint64_t old) {
        auto producer = Producer::open(ring);
        CHECK(producer.has_value());
        const auto stat = stat_ring(ring);
        CHECK(stat.has_value());
        if (!producer || !stat) return;
        CHECK(stat->ring_id != old);
        CHECK(stat->lanes.size() == 1);
    });
    slip_in(LifeByte::consumer(), [](const std::string& ring, std::uint64_t old) {
        auto consumer = Consumer::open(ring);
        CHECK(consumer.has_value());
        const auto stat = stat_ring(ring);
        CHECK(stat.has_value());
        if (!consumer || !stat) return;
        CHECK(stat->ring_id != old);
        CHECK(stat->consumer_alive);
    });
}

TEST_CASE("removal: a ring that stays in its remover's hands is a named error") {
    const TestRing ring(small);
    auto segment = Segment::attach(ring.name(), Deadline::now());
    REQUIRE(segment.has_value());
    auto remover = LifeLock::take(segment->fd(), LifeByte::creation());
    REQUIRE((remover.has_value() && remover->has_value()));
    const auto producer =
        Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
    const auto consumer =
        Consumer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
    REQUIRE_FALSE(producer.has_value());
    REQUIRE_FALSE(consumer.has_value());
    CHECK(producer.error().code == Errc::not_ready);
    CHECK(consumer.error().code == Errc::not_ready);
}

TEST_CASE("removal: who waits for a lane learns that the ring is gone") {
    const TestRing ring(small);
    auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    auto holder = ring.producer();
    const std::uint32_t before = map->consumer_bell().lane_changes.load();
    std::thread waiter([&] {
        auto producer =
            Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(30'000)});
        REQUIRE(producer.has_value());
        CHECK(send(*producer) == Push::ok);
    });
    const Deadline deadline = patience();
    while (map->consumer_bell().lane_changes.load() == before && !deadline.passed()) {
        std::this_thread::yield();
    }
    REQUIRE(remove_ring(ring.name(), true).has_value());
    REQUIRE(create_ring(ring.name(), small).has_value());
    waiter.join();  // in the new ring: the old one's only lane is still held
    auto consumer = ring.consumer();
    Record record;
    CHECK(consumer.wait(record, patience()) == Poll::record);
}

namespace {

// Both ends report the removal, now and later, although the other end lives; records that were sent
// before are still delivered.
template <class Remove>
void ends_both(const Remove& remove) {
    const TestRing ring(small);
    auto consumer = ring.consumer();
    auto producer = ring.producer();
    Record record;
    REQUIRE(send(producer) == Push::ok);
    remove(ring.name());
    REQUIRE(create_ring(ring.name(), small).has_value());  // another of that name does not help
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    for (int again = 0; again < 2; again++) {
        CHECK(send(producer) == Push::closed);
        Record more;
        CHECK(consumer.wait(more, patience()) == Poll::closed);
        CHECK(consumer.problem().find("was removed") != std::string::npos);
    }
    consumer.release(record.ref);
}

}  // namespace

TEST_CASE("removal: both ends of a ring end with it, once all is read") {
    ends_both([](const std::string& ring) { REQUIRE(remove_ring(ring, true).has_value()); });
}

TEST_CASE("removal: both ends of a ring end with it, though others take the name away") {
    ends_both([](const std::string& ring) {
        auto segment = Segment::attach(ring, Deadline::now());
        REQUIRE(segment.has_value());
        unlink_ring(*segment);
    });
}

TEST_CASE("removal: an idle consumer tells a producer, whose next record is refused") {
    const TestRing ring(small);
    auto consumer = ring.consumer();
    auto producer = ring.producer();
    const auto producers_map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(producers_map.has_value());
    Reservation reservation;
    Draft shape("prompt");
    shape.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {5, 0, 0, 0}, 1, nullptr});
    REQUIRE(producer.reserve(shape, patience(), reservation) == Push::ok);
    unlink_ring(producers_map->segment());
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::closed);
    CHECK(producers_map->policy().removed.load() == 1);
    CHECK(reservation.commit() == Push::closed);  // without a reader
}

TEST_CASE("removal: a producer is told with its next record, with room in its lane") {
    const TestRing ring(small);
    auto consumer = ring.consumer();
    auto producer = ring.producer();
    REQUIRE(send(producer) == Push::ok);
    REQUIRE(remove_ring(ring.name(), true).has_value());
    REQUIRE(create_ring(ring.name(), small).has_value());  // another of that name does not help
    CHECK(send(producer) == Push::closed);
    CHECK(producer.problem().find("was removed") != std::string::npos);
    CHECK(producer.open_group("another", 0, patience()) == Push::closed);
    auto successor = ring.producer();
    CHECK(send(successor) == Push::ok);
}

TEST_CASE("removal: a producer finds out by itself when others take the name away") {
    const TestRing ring({.lanes = 1, .lane_bytes = 16 << 20});
    auto producer = ring.producer();
    auto segment = Segment::attach(ring.name(), Deadline::now());
    REQUIRE(segment.has_value());
    unlink_ring(*segment);
    // One record a millisecond: its lane would take them for half a minute.
    int told_ok = 0;
    Push pushed = Push::ok;
    while (told_ok < 20'000 && pushed == Push::ok) {
        pushed = send(producer);
        told_ok++;
        const auto next = Deadline::after_ms(1);
        while (!next.passed()) std::this_thread::yield();
    }
    CHECK(pushed == Push::closed);
    CHECK(told_ok < 20'000);
}

TEST_CASE("removal: a word that only says so is not believed") {
    const TestRing ring(small);
    auto map = RingMap::attach(ring.name(), Deadline::now());
    REQUIRE(map.has_value());
    auto page = map->segment().map(map->geometry().policy_offset(), page_bytes, true);
    REQUIRE(page.has_value());
    page->at<PolicyPage>(0).removed = 1;
    auto producer = ring.producer();
    CHECK(send(producer) == Push::ok);
}

TEST_CASE("removal: sockets of dead publishers go with their ring, those of other rings stay") {
    const TestRing ring(small);
    const std::string longer = ring.name() + "0";  // its name begins with ours
    const auto die_at = [](const std::string& name) {
        // The leftover of a killed publisher.
        auto directory = channel::open_directory(true);
        REQUIRE(directory.has_value());
        const auto address = channel::address_of(*directory, channel::file_name(name, 0));
        REQUIRE(address.has_value());
        const Fd socket = channel::make_socket();
        const auto* generic = reinterpret_cast<const sockaddr*>(&*address);
        REQUIRE(bind(socket.get(), generic, sizeof *address) == 0);
    };
    die_at(ring.name());
    die_at(longer);
    CHECK(channel::ranks_of(ring.name()).size() == 1);
    REQUIRE(remove_ring(ring.name()).has_value());
    CHECK(channel::ranks_of(ring.name()).empty());
    CHECK(channel::ranks_of(longer).size() == 1);
    CHECK(channel::sweep(longer, true) == 1);
}
