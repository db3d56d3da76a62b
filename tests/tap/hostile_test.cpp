// Nothing in a ring's memory makes a tap read outside of it, hang or crash.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <limits>

#include "hostile/pages.hpp"
#include "support/splitmix64.hpp"
#include "tap_rounds.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint32_t lanes = 2;
const RingOptions small{
    .lanes = lanes, .lane_bytes = 64 << 10, .soft_bytes = 16 << 10, .spill_bytes = 64 << 10};

constexpr std::array<std::uint64_t, 10> words{0,
                                              1,
                                              63,
                                              64,
                                              4096,
                                              std::uint64_t{1} << 32,
                                              std::uint64_t{1} << 63,
                                              std::numeric_limits<std::uint64_t>::max(),
                                              std::numeric_limits<std::uint64_t>::max() - 63,
                                              std::uint64_t{3} * (64 << 10)};

// Rounds that all come to an end.
std::uint64_t rounds(Tap& tap, int count) {
    std::uint64_t records = 0;
    TapRecord record;
    for (int i = 0; i < count; i++) {
        while (tap.poll(record) == TapPoll::record) {
            REQUIRE(record.lane < lanes);
            records += record.view.digest(tap.schema()) != 1 ? 1 : 0;
        }
    }
    return records;
}

}  // namespace

TEST_CASE("tap: wrong words of a lane, one at a time, and it goes on once they are right again") {
    const TestRing ring(small);
    auto producer = ring.producer();
    const Pages pages(ring);
    const std::uint32_t spill = pages.geometry.spill_lane();
    auto tap = tap_of(ring);
    for (std::uint32_t lane : {producer.lane(), spill}) {
        for (auto* word :
             {&pages.entry(lane).head, &pages.owner(lane).tail, &pages.control().overflow_begin}) {
            for (const std::uint64_t wrong : words) {
                const std::uint64_t right = word->exchange(wrong);
                rounds(tap, 3);
                word->store(right);
                rounds(tap, 1);
            }
        }
    }
    REQUIRE(send(producer, {.repetition = 9}) == Push::ok);
    CHECK(round_of(tap) == std::vector<std::string>{"prompt/9"});
}

TEST_CASE("tap: wrong fields of a frame and of a record") {
    const TestRing ring(small);
    auto producer = ring.producer();
    for (std::uint32_t i = 0; i < 8; i++) REQUIRE(send(producer, {.repetition = i}) == Push::ok);
    const Pages pages(ring);
    std::byte* const data = pages.data(producer.lane());
    std::uint64_t unreadable = 0;
    for (std::uint64_t at = 0; at < 64 + 192 + 3 * 32; at += 4) {
        for (const std::uint64_t wrong : words) {
            std::uint64_t right = 0;
            std::memcpy(&right, data + at, sizeof right);
            std::memcpy(data + at, &wrong, sizeof wrong);
            auto tap = tap_of(ring);
            rounds(tap, 2);
            unreadable += tap.stats().unreadable;
            std::memcpy(data + at, &right, sizeof right);
        }
    }
    CHECK(unreadable > 200);
    auto tap = tap_of(ring);
    CHECK(rounds(tap, 1) == 8);
}

TEST_CASE("tap: rubbish everywhere behind the header") {
    Dice dice{2'026};
    std::uint64_t records = 0;
    std::uint64_t unreadable = 0;
    for (int i = 0; i < 40; i++) {
        const TestRing ring(small);
        auto producer = ring.producer();
        for (std::uint32_t r = 0; r < 20; r++) {
            REQUIRE(send(producer, {.repetition = r, .tokens = 100}) == Push::ok);
        }
        const Pages pages(ring);
        auto tap = tap_of(ring);
        const std::uint64_t from = pages.geometry.policy_offset();
        const std::uint64_t fixed = pages.geometry.fixed_bytes() - from;
        for (int scribbles = 0; scribbles < 200; scribbles++) {
            const bool in_lane = dice.below(2) == 0;
            std::byte* const at = in_lane ? pages.data(producer.lane()) + dice.below(2000) * 4
                                          : pages.all.data() + from + dice.below(fixed / 4) * 4;
            const std::uint64_t word = dice.below(2) == 0 ? words[dice.below(10)] : dice.next();
            std::memcpy(at, &word, 4);
            records += rounds(tap, 1);
        }
        unreadable += tap.stats().unreadable;
    }
    CHECK(records > 0);
    CHECK(unreadable > 0);
}
