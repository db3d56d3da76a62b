// Goal: where records are handed on from ring to ring, producers of the first one open groups
// within its consumer's places, and its consumer has places of the second one before they ask.
#include <doctest/doctest.h>

#include <thread>

#include "rollring/relay.hpp"
#include "settled.hpp"

using namespace rollring;
using rollring::test::open_settled;
using rollring::test::patience;
using rollring::test::prompt;
using rollring::test::TestRing;

namespace {

Push send(Producer& producer, int number, std::uint32_t repetition = 0) {
    return rollring::test::send(producer,
                                {.prompt = prompt(number), .repetition = repetition, .tokens = 20},
                                Deadline::now());
}

Record take(Consumer& consumer) {
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    return record;
}

GroupKey stand_in(std::uint64_t number) {
    return {number, 77};
}

StashOptions bounded(std::uint32_t groups) {
    return {.group_size = 2, .batch = BatchTarget::groups(1), .max_open_groups = groups};
}

}  // namespace

TEST_CASE("places: a group counts until its first record is released") {
    const TestRing ring;
    auto consumer = ring.consumer();
    RelayConsumer::bound_groups(consumer, 0);
    auto first = ring.producer();
    auto second = ring.producer();
    CHECK(send(first, 0) == Push::timed_out);
    RelayConsumer::bound_groups(consumer, 2);
    REQUIRE(send(first, 0) == Push::ok);
    REQUIRE(second.may_send(prompt(1), 0));
    CHECK(RelayConsumer::announced_groups(consumer) == 2);
    CHECK(send(second, 2) == Push::timed_out);
    CHECK(send(first, 0, 1) == Push::ok);  // a member of an open one never waits
    const Record opens = take(consumer);
    const Record member = take(consumer);
    CHECK(consumer.release(member.ref));
    CHECK(send(second, 2) == Push::timed_out);  // reading is not enough
    CHECK(consumer.release(opens.ref));
    CHECK(RelayConsumer::announced_groups(consumer) == 1);
    CHECK(send(second, 2) == Push::ok);
    CHECK(send(second, 3) == Push::timed_out);
    CHECK(second.cancel_group(prompt(1), 0));
    CHECK(send(second, 3) == Push::ok);
    // Fewer than are in use: no producer opens another one, and those that are open go on.
    RelayConsumer::bound_groups(consumer, 0);
    CHECK(send(first, 4) == Push::timed_out);
    CHECK(send(second, 3, 1) == Push::ok);
    CHECK(RelayConsumer::announced_groups(consumer) == 2);
}

TEST_CASE("places: they are kept for groups on their way, though their producer is gone") {
    const TestRing ring;
    auto consumer = ring.consumer();
    RelayConsumer::bound_groups(consumer, 2);
    auto first = ring.producer();
    for (int number = 0; number < 2; number++) REQUIRE(send(first, number) == Push::ok);
    const Record records[2] = {take(consumer), take(consumer)};
    first.close();
    auto second = ring.producer();
    Record record;
    Event event{};
    while (event.kind != Event::Kind::producer_joined || event.lane != second.lane()) {
        REQUIRE(consumer.poll(record) == Poll::empty);  // until it has looked around
        if (!consumer.next_event(event)) event = {};
        REQUIRE(event.kind != Event::Kind::producer_closed);
    }
    CHECK(RelayConsumer::announced_groups(consumer) == 2);
    CHECK(send(second, 2) == Push::timed_out);
    for (const Record& one : records) CHECK(consumer.release(one.ref));
    CHECK(RelayConsumer::announced_groups(consumer) == 0);
    CHECK(send(second, 2) == Push::ok);
    while (event.kind != Event::Kind::producer_closed) {
        static_cast<void>(consumer.poll(record));
        if (!consumer.next_event(event)) event = {};
    }
}

TEST_CASE("places: whoever comes after a consumer's death knows which groups count") {
    const TestRing ring;
    auto producer = ring.producer();
    {
        auto consumer = ring.consumer();
        RelayConsumer::bound_groups(consumer, 4);
        for (int number = 0; number < 4; number++) REQUIRE(send(producer, number) == Push::ok);
        const Record first = take(consumer);
        take(consumer);
        CHECK(consumer.release(first.ref));
    }
    auto consumer = ring.consumer();
    RelayConsumer::bound_groups(consumer, 4);
    CHECK(RelayConsumer::announced_groups(consumer) == 3);
    CHECK(send(producer, 4) == Push::ok);
    CHECK(send(producer, 5) == Push::timed_out);
    for (int left = 4; left > 0; left--) {
        const Record record = take(consumer);
        CHECK(record.redelivered == (left == 4));
        CHECK(RelayConsumer::announced_groups(consumer) == static_cast<std::uint64_t>(left));
        CHECK(consumer.release(record.ref));
    }
    CHECK(RelayConsumer::announced_groups(consumer) == 0);
}

TEST_CASE("places: one that was had in advance becomes a group's") {
    const TestRing ring;
    const auto stash = open_settled(ring, bounded(4));
    auto carrier = ring.producer();
    auto other = ring.producer();
    CHECK(RelayProducer::places(carrier) == RelayProducer::Places::plenty);
    REQUIRE(RelayProducer::take_spare_place(carrier, stand_in(1), {}));
    REQUIRE(RelayProducer::take_spare_place(carrier, stand_in(2), {}));
    // A half is in use: that is enough to have in advance.
    CHECK(RelayProducer::places(carrier) == RelayProducer::Places::scarce);
    CHECK(!RelayProducer::take_spare_place(carrier, stand_in(3), {}));
    REQUIRE(send(other, 0) == Push::ok);
    REQUIRE(send(other, 1) == Push::ok);
    CHECK(send(carrier, 2) == Push::timed_out);
    const GroupKey group = GroupKey::of(prompt(2), 0);
    CHECK(!RelayProducer::pass_place(carrier, stand_in(3), group));
    CHECK(RelayProducer::pass_place(carrier, stand_in(1), group));
    CHECK(RelayProducer::holds_place(carrier, group));
    CHECK(!RelayProducer::holds_place(carrier, stand_in(1)));
    CHECK(!RelayProducer::pass_place(carrier, stand_in(2), group));  // has one
    CHECK(send(carrier, 2) == Push::ok);
    CHECK(send(carrier, 3) == Push::timed_out);
    CHECK(carrier.cancel_group(stand_in(2)));
    CHECK(send(carrier, 3) == Push::ok);
    // One that is open at the stash needs none.
    Batch batch;
    REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 4);
    CHECK(!RelayProducer::pass_place(carrier, stand_in(2), GroupKey::of(prompt(0), 0)));
}

TEST_CASE("places: none is had in advance while somebody waits, or of little room") {
    const TestRing ring({.lanes = 3, .lane_bytes = 1 << 16, .spill_bytes = 1 << 16});
    const auto stash = open_settled(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    auto carrier = ring.producer();
    REQUIRE(RelayProducer::take_spare_place(carrier, stand_in(1), {2, 1000}));
    CHECK(!RelayProducer::take_spare_place(carrier, stand_in(2), {2, 1 << 15}));
    CHECK(RelayProducer::places(carrier) == RelayProducer::Places::plenty);
    auto other = ring.producer();
    REQUIRE(other.open_group("long", 0, Deadline::now(), {2, 1 << 12}) == Push::ok);
    CHECK(RelayProducer::places(carrier) == RelayProducer::Places::plenty);
    std::thread waits([&] {
        auto third = ring.producer();
        CHECK(third.open_group("alone", 0, patience(), {2, 3 << 14}) == Push::ok);
    });
    while (RelayProducer::places(carrier) != RelayProducer::Places::scarce)
        std::this_thread::yield();
    CHECK(!RelayProducer::take_spare_place(carrier, stand_in(2), {}));
    CHECK(carrier.cancel_group(stand_in(1)));
    CHECK(other.cancel_group("long", 0));
    waits.join();
}

TEST_CASE("places: those in advance take what the spill may grow to, and leave a group free") {
    const TestRing ring({.lanes = 3, .lane_bytes = 1 << 16, .spill_bytes = 1 << 24});
    const auto stash = open_settled(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    auto carrier = ring.producer();
    int number = 0;
    const auto take_all = [&] {
        int taken = 0;
        while (RelayProducer::take_spare_place(carrier, stand_in(++number), {})) taken++;
        return taken;
    };
    auto other = ring.producer();
    const auto open_one = [&](int group) {
        return rollring::test::send(other, {.prompt = prompt(group), .tokens = 1000},
                                    Deadline::now());
    };
    Batch batch;
    int at_first = 0;
    int more = 0;
    for (int turn = 0; turn < 8; turn++) {
        REQUIRE(open_one(turn) == Push::ok);
        REQUIRE(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        (turn == 0 ? at_first : more) += take_all();
    }
    CHECK(more > at_first);
    // Another producer opens a group at once.
    REQUIRE(other.open_group("next", 0, Deadline::now(), {}) == Push::ok);
}

TEST_CASE("places: where nobody forms groups nobody need ask") {
    const TestRing ring;
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.poll(record) == Poll::empty);
    auto producer = ring.producer();
    CHECK(RelayProducer::places(producer) == RelayProducer::Places::not_asked_for);
    CHECK(!RelayProducer::take_spare_place(producer, stand_in(1), {}));
    CHECK(send(producer, 0) == Push::ok);
}
