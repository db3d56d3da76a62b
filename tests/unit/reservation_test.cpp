// Goal: a reservation reports the fate of its record, follows a producer that is moved, and is
// harmless when it is too late.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

Draft shape_of(std::uint32_t repetition) {
    Draft shape("prompt");
    shape.meta.repetition_id = repetition;
    shape.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {50, 0, 0, 0}, 1, nullptr});
    return shape;
}

void fill(const Reservation& room, std::int32_t token) {
    const auto ids = room.values<std::int32_t>(Std::token_ids);
    REQUIRE(ids.size() == 50);
    std::ranges::fill(ids, token);
}

void expect(Consumer& consumer, std::uint32_t repetition, std::int32_t token) {
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.view.meta().repetition_id == repetition);
    REQUIRE(record.view.token_ids().size() == 50);
    for (const std::int32_t id : record.view.token_ids()) REQUIRE(id == token);
    CHECK(consumer.release(record.ref));
}

}  // namespace

TEST_CASE("reservation: it survives the move of its producer") {
    const TestRing ring;
    auto consumer = ring.consumer();
    std::vector<Producer> producers;
    producers.push_back(ring.producer());
    Reservation room;
    REQUIRE(producers[0].reserve(shape_of(3), patience(), room) == Push::ok);
    fill(room, 7);
    for (int i = 0; i < 3; i++) producers.push_back(ring.producer());  // moves the first
    std::optional<Producer> elsewhere(std::move(producers[0]));
    CHECK(room.view().n_tokens() == 50);
    CHECK(room.commit() == Push::ok);
    expect(consumer, 3, 7);
    CHECK(elsewhere->stats().records == 1);
    CHECK(elsewhere->stats().tokens == 50);
}

TEST_CASE("reservation: what it has lent stays its own when its producer is gone") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    std::optional<Producer> producer(ring.producer());
    std::optional<Reservation> room(std::in_place);
    REQUIRE(producer->reserve(shape_of(0), patience(), *room) == Push::ok);
    const auto ids = room->values<std::int32_t>(Std::token_ids);
    producer.reset();
    std::ranges::fill(ids, 9);  // too late, and without harm
    CHECK(room->values<std::int32_t>(Std::token_ids).empty());
    rollring::test::await_close(consumer);
    CHECK(Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(20)})
              .error()
              .code == Errc::no_free_lane);
    CHECK(room->commit() == Push::closed);
    CHECK(room->commit() == Push::not_reserved);
    auto next = ring.producer();
    REQUIRE(next.reserve(shape_of(1), patience(), *room) == Push::ok);
    fill(*room, 2);
    CHECK(room->commit() == Push::ok);
    expect(consumer, 1, 2);
}

TEST_CASE("reservation: how it ended is told after the tokens, and sealed with them") {
    const TestRing ring;
    auto consumer = ring.consumer();
    auto producer = ring.producer({.checksum = Checksum::xxh3});
    Draft shape = shape_of(3);
    shape.meta.created_ns = 5;
    shape.meta.policy_version_min = 2;
    Reservation room;
    REQUIRE(producer.reserve(shape, patience(), room) == Push::ok);
    fill(room, 1);
    room.shrink(20);
    CHECK_FALSE(room.set({.n_prompt = 21, .reward = 9.0}));
    CHECK(room.set({.status = Status::truncated, .n_prompt = 20, .reward = 0.5}));
    CHECK(room.set({.policy_version_max = 4, .finished_ns = 7}));
    REQUIRE(room.commit() == Push::ok);
    CHECK_FALSE(room.set({.reward = 1.0}));
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    const Meta& meta = record.view.meta();
    CHECK(meta.status == Status::truncated);
    CHECK(meta.n_prompt == 20);
    CHECK(meta.reward == 0.5);
    CHECK(meta.policy_version_min == 2);
    CHECK(meta.policy_version_max == 4);
    CHECK(meta.created_ns == 5);
    CHECK(meta.finished_ns == 7);
    CHECK(meta.repetition_id == 3);
    CHECK(consumer.stats().torn == 0);
}

TEST_CASE("reservation: one that a later call has overtaken touches no other record") {
    const TestRing ring;
    auto consumer = ring.consumer();
    auto producer = ring.producer();
    Reservation old;
    REQUIRE(producer.reserve(shape_of(0), patience(), old) == Push::ok);
    producer.flush();  // looks for no room
    fill(old, 1);
    Reservation room;
    REQUIRE(producer.reserve(shape_of(1), patience(), room) == Push::ok);
    fill(room, 5);
    CHECK(old.values<std::int32_t>(Std::token_ids).empty());
    CHECK(old.bytes(0, dtype_i32).empty());
    CHECK(old.view().n_tokens() == 0);
    old.shrink(3);
    CHECK(old.commit() == Push::not_reserved);
    CHECK(producer.problem().find("later call") != std::string::npos);
    CHECK(room.commit() == Push::ok);
    CHECK(room.commit() == Push::not_reserved);
    CHECK(Reservation().commit_later() == Push::not_reserved);
    expect(consumer, 1, 5);
    Record record;
    CHECK(consumer.poll(record) == Poll::empty);
    CHECK(producer.stats().records == 1);
}

TEST_CASE("reservation: a closed producer says so when it is committed") {
    const TestRing ring;
    auto producer = ring.producer();
    Reservation room;
    REQUIRE(producer.reserve(shape_of(0), patience(), room) == Push::ok);
    producer.close();
    CHECK(room.commit_later() == Push::closed);
    CHECK(producer.problem().find("closed") != std::string::npos);
}

TEST_CASE("reservation: a push of a column without data is refused, and shows no other record's") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * 1024});
    auto producer = ring.producer();
    CHECK(producer.push(shape_of(0), patience()) == Push::bad_record);
    CHECK(producer.problem().find("no data") != std::string::npos);
    Draft nothing("prompt");  // of no tokens there is no data
    nothing.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {0, 0, 0, 0}, 1, nullptr});
    CHECK(producer.push(nothing, patience()) == Push::ok);
}
