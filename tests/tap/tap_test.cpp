// A tap sees each record once, and its ring has no trace of it.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rollring/tap.hpp"
#include "segment.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"
#include "tap_rounds.hpp"
#include "xxh3.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// All bytes of a ring, holes included.
std::uint64_t bytes_of(const std::string& ring) {
    const auto segment = Segment::attach(ring, Deadline::now(), Access::read_only);
    REQUIRE(segment.has_value());
    std::vector<std::byte> all(segment->geometry().segment_bytes());
    REQUIRE(segment->read(0, all.data(), all.size()));
    return XXH3_64bits(all.data(), all.size());
}

// Mappings and descriptors of this process that can write into an object with this name.
std::vector<std::string> writers(const std::string& object) {
    std::vector<std::string> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(object) != std::string::npos && line.find(" rw") != std::string::npos) {
            found.push_back(line);
        }
    }
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const auto target = std::filesystem::read_symlink(entry.path(), gone);
        if (target.string().find(object) == std::string::npos) continue;
        const int fd = std::stoi(entry.path().filename().string());
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) found.push_back(target.string());
    }
    return found;
}

}  // namespace

TEST_CASE("tap: each record once, in its producer's order, with its identity") {
    const TestRing ring;
    auto tap = tap_of(ring);
    CHECK(round_of(tap).empty());
    auto first = ring.producer({.name = "first"});
    auto second = ring.producer({.name = "second"});
    for (std::uint32_t i = 0; i < 3; i++) {
        REQUIRE(send(first, {.prompt = "a", .repetition = i, .reward = 0.5}) == Push::ok);
        REQUIRE(send(second, {.prompt = "b", .repetition = i}) == Push::ok);
    }
    CHECK(round_of(tap) == std::vector<std::string>{"a/0", "a/1", "a/2", "b/0", "b/1", "b/2"});
    CHECK(round_of(tap).empty());
    REQUIRE(send(second, {.prompt = "b", .repetition = 7}) == Push::ok);
    TapRecord record;
    REQUIRE(tap.poll(record) == TapPoll::record);
    CHECK((record.lane == second.lane() && record.epoch == 1 && record.sequence == 3));
    CHECK(record.producer == "second");
    CHECK((record.committed_ns > 0 && record.committed_ns <= monotonic_ns()));
    CHECK(record.view.meta().repetition_id == 7);
    CHECK(record.view.token_ids().size() == 3);
    CHECK(record.bytes.size() >= 192);
    CHECK(record.view.run_id() == tap.ring_id());
    const TapStats stats = tap.stats();
    CHECK((stats.records == 7 && stats.tokens == 21 && stats.missed == 0 && stats.gone == 0));
}

TEST_CASE("tap: records that lie there when it comes, released or not, as long as they stay") {
    const TestRing ring;
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (std::uint32_t i = 0; i < 5; i++) REQUIRE(send(producer, {.repetition = i}) == Push::ok);
    Record record;
    std::vector<RecordRef> held;
    for (int i = 0; i < 4; i++) {
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        held.push_back(record.ref);
    }
    REQUIRE(consumer.release(held[0]));
    REQUIRE(consumer.release(held[2]));  // behind one that is held: its memory is not free
    auto tap = tap_of(ring);
    CHECK(round_of(tap) ==
          std::vector<std::string>{"prompt/1", "prompt/2", "prompt/3", "prompt/4"});
    CHECK(tap.stats().missed == 0);  // records released before it came do not count
}

TEST_CASE("tap: records that are released between two rounds are missed, and counted") {
    const TestRing ring;
    auto tap = tap_of(ring);
    auto consumer = ring.consumer();
    CHECK(round_of(tap).empty());
    Record record;
    for (std::uint32_t life = 0; life < 2; life++) {
        auto producer = ring.producer();
        for (std::uint32_t i = 0; i < 5; i++) {
            REQUIRE(send(producer, {.repetition = i}) == Push::ok);
            if (i == 4) continue;
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            REQUIRE(consumer.release(record.ref));
        }
        CHECK(round_of(tap) == std::vector<std::string>{"prompt/4"});
        CHECK(tap.stats().missed == 4 * (life + 1));
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        REQUIRE(consumer.release(record.ref));
        producer.close();
        await_close(consumer);
    }
    CHECK(tap.stats().records == 2);
}

TEST_CASE("tap: it writes nothing, and could not") {
    const TestRing ring;
    {
        auto producer = ring.producer();
        for (std::uint32_t i = 0; i < 9; i++) {
            REQUIRE(send(producer, {.repetition = i, .tokens = 1000}) == Push::ok);
        }
    }
    const std::string object = *Segment::object_name(ring.name());
    REQUIRE(writers(object).empty());
    const std::uint64_t before = bytes_of(ring.name());
    const auto resident = stat_ring(ring.name())->resident_bytes;
    {
        auto tap = tap_of(ring);
        CHECK(round_of(tap).size() == 9);
        CHECK(writers(object).empty());
        CHECK_FALSE(Segment::in_use(ring.name()).value());  // no life byte
        CHECK(round_of(tap).empty());
    }
    CHECK(bytes_of(ring.name()) == before);
    CHECK(stat_ring(ring.name())->resident_bytes == resident);
    auto consumer = ring.consumer();
    Record record;
    for (int i = 0; i < 9; i++) CHECK(consumer.wait(record, patience()) == Poll::record);
    CHECK(consumer.stats().redelivered == 0);
}

TEST_CASE("tap: a removed ring is told after its records, and the next one is another") {
    const TestRing ring;
    auto tap = tap_of(ring);
    auto producer = ring.producer();
    REQUIRE(send(producer) == Push::ok);
    REQUIRE(remove_ring(ring.name(), true).has_value());
    TapRecord record;
    CHECK(tap.poll(record) == TapPoll::record);
    CHECK(tap.poll(record) == TapPoll::removed);
    CHECK(tap.poll(record) == TapPoll::removed);
    REQUIRE(create_ring(ring.name(), {.lanes = 1, .lane_bytes = 64 << 10}).has_value());
    CHECK(tap.poll(record) == TapPoll::removed);
    const std::uint64_t before = tap.ring_id();
    tap = tap_of(ring);
    CHECK(tap.ring_id() != before);
    CHECK(tap.poll(record) == TapPoll::empty);
}

TEST_CASE("tap: a ring whose owner and producers were killed is read to its end") {
    const std::string name = scratch_name("tap-orphan");
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t owner = start_child([&] {
        auto made = OwnedRing::create(name, {.lanes = 2, .lane_bytes = 64 << 10});
        auto producer = Producer::open(name);
        if (!made || !producer) return 1;
        for (std::uint32_t i = 0; i < 4; i++) {
            if (send(*producer, {.repetition = i}) != Push::ok) return 1;
        }
        if (write(ready[1], "x", 1) != 1) return 1;
        for (;;) pause();
    });
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    auto tap = Tap::attach(name);
    REQUIRE(tap.has_value());
    TapRecord record;
    REQUIRE(tap->poll(record) == TapPoll::record);
    CHECK(kill_and_collect(owner));
    CHECK(round_of(*tap).size() == 3);
    remove_orphaned_rings();
    CHECK(tap->poll(record) == TapPoll::removed);
    auto late = Tap::attach(name, {.attach_timeout = {}});
    REQUIRE_FALSE(late.has_value());
    CHECK(late.error().code == Errc::not_found);
}

TEST_CASE("tap: a round copies no more than it was given, and each lane has its turn") {
    const TestRing ring;
    auto first = ring.producer();
    auto second = ring.producer();
    for (std::uint32_t i = 0; i < 20; i++) {
        REQUIRE(send(first, {.prompt = "a", .repetition = i, .tokens = 1000}) == Push::ok);
        REQUIRE(send(second, {.prompt = "b", .repetition = i, .tokens = 1000}) == Push::ok);
    }
    auto tap = tap_of(ring, {.round_bytes = 10'000});
    const auto one = round_of(tap);
    CHECK(one == std::vector<std::string>{"a/0", "a/1", "a/2"});
    CHECK(round_of(tap) == std::vector<std::string>{"b/0", "b/1", "b/2"});
    std::size_t rest = 0;
    for (int round = 0; round < 40; round++) rest += round_of(tap).size();
    CHECK(rest == 34);
    CHECK(tap.stats().missed == 0);
}

TEST_CASE("tap: options and rings that it refuses") {
    const TestRing ring;
    const auto none = Tap::attach(ring.name(), {.round_bytes = 0});
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == Errc::invalid_argument);
    const TestRing store({.lanes = 1, .lane_bytes = 64 << 10, .purpose = Purpose::values});
    const auto values = Tap::attach(store.name());
    REQUIRE_FALSE(values.has_value());
    CHECK(values.error().code == Errc::invalid_argument);
    CHECK(values.error().message.find("store") != std::string::npos);
}
