// A record that a stash moves to the spill is returned once, wherever the tap meets it.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "support/pairs.hpp"
#include "support/test_ring.hpp"
#include "tap_rounds.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t record_bytes = 20'000;

// Sends the first members of pairs, while the stash moves those that pin a lane.
void open_pairs(Producer& producer, Stash& stash, int from, int to) {
    Batch batch;
    for (int pair = from; pair < to; pair++) {
        const std::string name = "g" + std::to_string(pair);
        Push sent = Push::timed_out;
        for (const Deadline deadline = patience(); sent != Push::ok && !deadline.passed();) {
            sent = send_bytes(producer, name, 0, record_bytes, Deadline::after_ms(1));
            REQUIRE(stash.next(batch, Deadline::now()) == NextBatch::timed_out);
        }
        REQUIRE(sent == Push::ok);
    }
}

std::vector<std::string> pairs(int from, int to) {
    std::vector<std::string> names;
    for (int pair = from; pair < to; pair++) names.push_back(fmt::format("g{}/0", pair));
    std::ranges::sort(names);
    return names;
}

std::vector<std::string> sorted_rounds(Tap& tap) {
    std::vector<std::string> names;
    for (int round = 0; round < 3; round++) {
        for (auto& name : round_of(tap)) names.push_back(std::move(name));
    }
    std::ranges::sort(names);
    return names;
}

void follow_moves(const RingOptions& options, int count) {
    const TestRing ring(options);
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    auto producer = ring.producer();
    auto rarely = tap_of(ring);
    std::vector<std::string> seen;
    auto often = tap_of(ring);
    for (int pair = 0; pair < count; pair++) {
        open_pairs(producer, *stash, pair, pair + 1);
        for (auto& name : round_of(often)) seen.push_back(std::move(name));
    }
    REQUIRE(stash->copies().copied_bytes > count / 2 * record_bytes);
    for (auto& name : round_of(often)) seen.push_back(std::move(name));
    std::ranges::sort(seen);
    CHECK(seen == pairs(0, count));
    CHECK((often.stats().missed == 0 && often.stats().unreadable == 0));
    CHECK(sorted_rounds(rarely) == pairs(0, count));
    CHECK((rarely.stats().missed == 0 && rarely.stats().unreadable == 0));
    auto late = tap_of(ring);
    CHECK(sorted_rounds(late) == pairs(0, count));
    CHECK((late.stats().missed == 0 && late.stats().unreadable == 0));
}

}  // namespace

TEST_CASE("tap: records that move to the spill are returned once") {
    follow_moves({.lanes = 1, .lane_bytes = 128 * kib, .spill_bytes = mib}, 24);
}

TEST_CASE("tap: records in the overflow file are read there") {
    const std::string folder = std::filesystem::temp_directory_path() / scratch_name("tap");
    REQUIRE(std::filesystem::create_directory(folder));
    follow_moves({.lanes = 1,
                  .lane_bytes = 128 * kib,
                  .spill_bytes = 128 * kib,
                  .overflow_dir = folder,
                  .overflow_bytes = mib},
                 24);
    std::filesystem::remove_all(folder);
}
