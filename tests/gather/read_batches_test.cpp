// Goal: a batch that a device reads is acknowledged once it has been read, not before, in order;
// and a device that failed gives it back.
#include <doctest/doctest.h>

#include "rollring/gather.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct World {
    TestRing ring{small_lanes};
    Producer producer = *Producer::open(ring.name());
    std::unique_ptr<Stash> stash = open_stash(ring, freshest_pair);

    Batch pair(const std::string& prompt) {
        send(producer, prompt, 0);
        send(producer, prompt, 1);
        return next();
    }
    Batch next() {
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        return batch;
    }
    [[nodiscard]] std::int64_t step() const { return stash->last_acked_step(); }
};

// A device's account of a batch.
struct Reading {
    Result<bool> done = false;
    [[nodiscard]] ReadBatches::Read read() {
        return [this] { return done; };
    }
};

std::size_t left_of(ReadBatches& reading) {
    const auto left = reading.advance();
    REQUIRE(left.has_value());
    return *left;
}

Result<bool> failure() {
    return refused(Errc::device_error, "GPU 0: work on a stream failed");
}

}  // namespace

TEST_CASE("read batches: one is acknowledged once it was read, and no step goes back") {
    World world;
    Reading first;
    Reading second;
    ReadBatches reading;
    REQUIRE(reading.ack_after(world.pair("a"), 4, first.read()).has_value());
    REQUIRE(reading.ack_after(world.pair("b"), 5, second.read()).has_value());
    CHECK(left_of(reading) == 2);
    second.done = true;
    CHECK(left_of(reading) == 2);
    CHECK(world.step() == -1);
    const auto late = reading.finish(Deadline::now());
    REQUIRE_FALSE(late.has_value());
    CHECK(late.error().code == Errc::timed_out);
    first.done = true;
    CHECK(left_of(reading) == 0);
    CHECK(world.step() == 5);
    CHECK(reading.finish(patience()).has_value());
}

TEST_CASE("read batches: what a failed device was to read comes again, and the others do not") {
    World world;
    Reading bad;
    Reading good;
    ReadBatches reading;
    REQUIRE(reading.ack_after(world.pair("a"), 4, bad.read()).has_value());
    REQUIRE(reading.ack_after(world.pair("b"), 5, good.read()).has_value());
    bad.done = failure();
    good.done = true;
    const auto advanced = reading.advance();
    REQUIRE_FALSE(advanced.has_value());
    CHECK(advanced.error().code == Errc::device_error);
    CHECK(world.step() == 5);
    const Batch again = world.next();
    CHECK(again.sequences()[0].view.instance_id() == "a");
    CHECK(left_of(reading) == 0);
}

TEST_CASE("read batches: a gatherer's marks, and batches that are not leased") {
    World world;
    auto gatherer = Gatherer::open(Device::host());
    REQUIRE(gatherer.has_value());
    ReadBatches reading;
    REQUIRE(reading.ack_after(world.pair("a"), 1, *gatherer).has_value());
    CHECK(left_of(reading) == 0);
    CHECK(world.step() == 1);
    Batch batch = world.pair("b");
    batch.nack();
    CHECK(reading.ack_after(std::move(batch), 2, *gatherer).error().code == Errc::not_leased);
    {
        ReadBatches dropped;
        const ReadBatches::Read never = [] { return Result<bool>(false); };
        REQUIRE(dropped.ack_after(world.next(), 2, never).has_value());
    }
    CHECK(world.step() == 1);
    CHECK(world.next().sequences()[0].view.instance_id() == "b");
}
