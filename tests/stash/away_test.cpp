// Goal: a trainer that works for minutes between two calls of next() finds its next batch ready,
// although the stash gives no credit meanwhile.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "rollring/stash.hpp"
#include "support/pairs.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// A batch of more than the first spill and the first addition to it.
constexpr std::size_t batch_groups = 128;
constexpr std::uint64_t member_bytes = 64 * kib;

// Each lane has room for two batches' share of one producer.
class Rollouts {
  public:
    explicit Rollouts(const TestRing& ring) {
        for (int i = 0; i < 8; i++) producers_.push_back(ring.producer());
    }

    // Sends so many groups, as many from each producer, unless there is no credit.
    std::size_t send(std::size_t most) {
        const std::size_t share = (most + producers_.size() - 1) / producers_.size();
        std::size_t sent = 0;
        for (Producer& producer : producers_) {
            const std::size_t until = std::min(most, sent + share);
            while (sent < until && send_group(producer)) sent++;
        }
        return sent;
    }

  private:
    bool send_group(Producer& producer) {
        const std::string prompt = "g" + std::to_string(sent_);
        const Push first = send_bytes(producer, prompt, 0, member_bytes, Deadline::now());
        if (first == Push::timed_out) return false;
        REQUIRE(first == Push::ok);
        REQUIRE(send_bytes(producer, prompt, 1, member_bytes, Deadline::now()) == Push::ok);
        sent_++;
        return true;
    }

    std::vector<Producer> producers_;
    std::size_t sent_ = 0;
};

}  // namespace

TEST_CASE("away: producers that have waited can send a whole batch while the trainer works") {
    const TestRing ring({.lanes = 8, .lane_bytes = 8 * mib});
    const auto stash =
        open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(batch_groups)});
    Rollouts rollouts(ring);
    std::size_t sent = 0;
    for (std::int64_t step = 0; step < 3; step++) {
        CAPTURE(step);
        Batch batch;
        while (stash->next(batch, Deadline::now()) != NextBatch::batch) {
            sent += rollouts.send(batch_groups - sent);
        }
        REQUIRE(batch.groups().size() == batch_groups);
        sent = rollouts.send(batch_groups);
        CHECK(sent == batch_groups);
        REQUIRE(batch.ack(step).has_value());
    }
    CHECK(stash->account().conserved());
}

// The room is that of all lanes together, and only the stash reads claims, adds to the room, and
// shows which groups are open.
TEST_CASE("away: a producer that attaches meanwhile has no credit until the stash works") {
    const TestRing ring({.lanes = 4, .lane_bytes = mib});
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(64)});
    auto first = ring.producer();
    Push pushed = Push::ok;
    for (int i = 0; pushed == Push::ok; i++) {
        pushed = send_bytes(first, "a" + std::to_string(i), 0, member_bytes, Deadline::now());
    }
    REQUIRE(pushed == Push::timed_out);
    CHECK(first.problem().find("no new group can open") != std::string::npos);
    CHECK(send_bytes(first, "a0", 1, member_bytes, Deadline::now()) == Push::ok);

    auto second = ring.producer();
    const auto sends = [&](const std::string& prompt) {
        return send_bytes(second, prompt, 1, member_bytes, Deadline::now()) == Push::ok;
    };
    CHECK(!sends("b"));
    CHECK(!sends("a1"));  // was opened meanwhile
    Batch batch;
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(sends("a1"));
    CHECK(sends("b"));
}
