// Goal: the bound on open groups counts what was opened before it, and, where the trainer says so,
// not what the trainer holds.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ring_map.hpp"
#include "settled.hpp"

using namespace rollring;
using rollring::test::open_settled;
using rollring::test::patience;
using rollring::test::prompt;
using rollring::test::TestRing;

namespace {

Push send(Producer& producer, const std::string& prompt, std::uint32_t repetition,
          Deadline deadline) {
    return rollring::test::send(
        producer, {.prompt = prompt, .repetition = repetition, .tokens = 20}, deadline);
}

const StashOptions ten{.group_size = 2, .batch = BatchTarget::groups(1), .max_open_groups = 10};

}  // namespace

TEST_CASE("admission: groups opened before the trainer came count") {
    const TestRing ring;
    auto producer = ring.producer();
    auto other = ring.producer();  // the first has places left, from before there was a bound
    int sent = 0;
    for (; sent < 25; sent++) {
        REQUIRE(send(producer, prompt(sent), 0, Deadline::now()) == Push::ok);
        REQUIRE(send(producer, prompt(sent), 1, Deadline::now()) == Push::ok);
    }
    const auto stash = Stash::open(ring.name(), ten);
    REQUIRE(stash.has_value());
    Batch batch;
    int step = 0;
    for (; step < 15; step++) {
        CHECK(send(other, prompt(sent), 0, Deadline::now()) == Push::timed_out);
        REQUIRE((*stash)->next_batch(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(step).has_value());
    }
    REQUIRE((*stash)->next_batch(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(step).has_value());
    CHECK(send(other, prompt(sent), 0, patience()) == Push::ok);
}
