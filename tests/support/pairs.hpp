#pragma once
// Pairs of records, one prompt each: the smallest groups that can wait for something.

#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rollring/stash.hpp"
#include "support/test_ring.hpp"

namespace rollring::test {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = 1024 * kib;
inline const RingOptions small_lanes{
    .lanes = 2, .lane_bytes = 64 * kib, .soft_bytes = 16 * kib, .spill_bytes = 64 * kib};

// A window of the oldest would wait for the stragglers of these tests.
inline const StashOptions freshest_pair{
    .group_size = 2, .order = Order::freshest, .batch = BatchTarget::groups(1)};

// NOLINTNEXTLINE(readability-function-size): most are seldom given
inline bool try_send(Producer& producer, const std::string& prompt, std::uint32_t repetition,
                     Deadline deadline, std::uint32_t group_size = 0, std::uint32_t attempt = 0) {
    const Push pushed = send(producer,
                             {.prompt = prompt,
                              .repetition = repetition,
                              .group_size = group_size,
                              .attempt = attempt,
                              .reward = static_cast<double>(repetition),
                              .tokens = 200},
                             deadline);
    REQUIRE((pushed == Push::ok || pushed == Push::timed_out));
    return pushed == Push::ok;
}

// NOLINTNEXTLINE(readability-function-size): most are seldom given
inline Push send_bytes(Producer& producer, const std::string& prompt, std::uint32_t repetition,
                       std::uint64_t bytes, Deadline deadline, std::uint32_t group_size = 2) {
    return send(
        producer,
        {.prompt = prompt, .repetition = repetition, .group_size = group_size, .tokens = bytes / 4},
        deadline);
}

inline void send(Producer& producer, const std::string& prompt, std::uint32_t repetition,
                 std::uint32_t group_size = 0) {
    REQUIRE(try_send(producer, prompt, repetition, patience(), group_size));
}

inline std::unique_ptr<Stash> open_stash(const TestRing& ring, StashOptions options) {
    auto opened = Stash::open(ring.name(), options);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

inline std::int64_t next_step(const Stash& stash) {
    return stash.last_acked_step() + 1;
}

// Whole groups of pairs, one prompt each, with the tokens that were sent.
inline void check_pairs(const Batch& batch, std::multiset<std::string>& seen) {
    for (std::size_t group = 0; group < batch.groups().size(); group++) {
        const auto first = batch.group_offsets()[group];
        REQUIRE(batch.group_offsets()[group + 1] - first == 2);
        const std::string prompt(batch.sequences()[first].view.instance_id());
        for (std::uint32_t i = 0; i < 2; i++) {
            const TrajectoryView& view = batch.sequences()[first + i].view;
            CHECK(view.instance_id() == prompt);
            CHECK(view.meta().repetition_id == i);
            REQUIRE(view.token_ids().size() > 0);
            for (const std::int32_t token : view.token_ids()) {
                REQUIRE(token == static_cast<std::int32_t>(i));
            }
        }
        seen.insert(prompt);
    }
}

// Sends `count` pairs one after the other and trains on each at once, while others stay open.
inline void pass_pairs(Producer& producer, Stash& stash, const std::string& prefix, int count,
                       std::multiset<std::string>& seen) {
    for (int pair = 0; pair < count; pair++) {
        const std::string prompt = prefix + std::to_string(pair);
        send(producer, prompt, 0, 2);
        send(producer, prompt, 1, 2);
        Batch batch;
        REQUIRE(stash.next(batch, patience()) == NextBatch::batch);
        check_pairs(batch, seen);
        REQUIRE(batch.ack(stash.last_acked_step() + 1).has_value());
    }
}

}  // namespace rollring::test
