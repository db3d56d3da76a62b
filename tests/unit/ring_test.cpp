#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

std::vector<std::int32_t> tokens_of(std::size_t count, std::int32_t first) {
    std::vector<std::int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

Draft draft_of(const std::vector<std::int32_t>& tokens, std::uint32_t repetition) {
    Draft draft("prompt");
    draft.meta.repetition_id = repetition;
    draft.set(Std::token_ids, tokens);
    return draft;
}

}  // namespace

TEST_CASE("ring: a record arrives as it was sent, in place") {
    const TestRing ring;
    auto producer = ring.producer({.name = "worker-0"});
    auto consumer = ring.consumer();
    const auto tokens = tokens_of(100, 7);
    Draft draft = draft_of(tokens, 3);
    draft.meta.reward = 0.5;
    draft.meta.n_prompt = 10;
    REQUIRE(producer.push(draft, patience()) == Push::ok);

    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.view.instance_id() == "prompt");
    CHECK(record.view.meta().repetition_id == 3);
    CHECK(record.view.meta().reward == 0.5);
    CHECK(record.view.meta().n_prompt == 10);
    CHECK(std::ranges::equal(record.view.token_ids(), tokens));
    CHECK(record.view.logprobs().empty());
    CHECK(reinterpret_cast<std::uintptr_t>(record.view.token_ids().data()) % 64 == 0);
    CHECK(record.sequence == 0);
    CHECK_FALSE(record.redelivered);
    consumer.release(record.ref);
    CHECK(consumer.poll(record) == Poll::empty);
    CHECK(consumer.stats().released == 1);
}

TEST_CASE("ring: many laps, mixed lengths, released out of order, nothing lost") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10, .soft_bytes = 16 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    std::vector<RecordRef> held;
    std::uint64_t sent = 0;
    std::uint64_t got = 0;
    Record record;
    while (got < 5000) {
        const auto tokens = tokens_of((sent * 37) % 900, static_cast<std::int32_t>(sent));
        if (sent < 5000 && producer.push(draft_of(tokens, static_cast<std::uint32_t>(sent)),
                                         Deadline::now()) == Push::ok) {
            sent++;
        }
        if (consumer.poll(record) != Poll::record) continue;
        REQUIRE(record.view.meta().repetition_id == got);
        REQUIRE(std::ranges::equal(record.view.token_ids(),
                                   tokens_of((got * 37) % 900, static_cast<std::int32_t>(got))));
        got++;
        held.push_back(record.ref);
        if (held.size() == 5) {
            for (const std::size_t i : {3, 1, 4, 0, 2}) consumer.release(held[i]);
            held.clear();
        }
    }
    for (const RecordRef& ref : held) consumer.release(ref);
    CHECK(consumer.stats().lost == 0);
    CHECK(consumer.stats().duplicates == 0);
    CHECK(producer.stats().laps_soft + producer.stats().laps_full > 10);
}

TEST_CASE("ring: a holder of nearly the whole lane is not blocked by a soft wrap") {
    const TestRing ring({.lanes = 1, .lane_bytes = 256 << 10, .soft_bytes = 8 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    const auto tokens = tokens_of(128, 0);
    std::vector<RecordRef> held;
    Record record;
    const auto turn = [&] {
        REQUIRE(producer.push(draft_of(tokens, 0), Deadline::now()) == Push::ok);
        REQUIRE(consumer.poll(record) == Poll::record);
        held.push_back(record.ref);
    };
    // The holding begins at several places of a lap.
    for (int place = 0; place < 16; place++) {
        for (int i = 0; i < 100 + place; i++) {
            turn();
            consumer.release(held.back());
            held.clear();
        }
        const std::size_t fits = (256 << 10) / record.ref.bytes() - 4;
        for (std::size_t i = 0; i < fits; i++) turn();
        for (const RecordRef& ref : held) consumer.release(ref);
        held.clear();
    }
    CHECK(producer.stats().laps_soft > 16);
    CHECK(producer.stats().jumps > 0);
}

TEST_CASE("ring: full means back-pressure with a reason, never loss") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    const auto tokens = tokens_of(1000, 0);
    std::uint32_t sent = 0;
    while (producer.push(draft_of(tokens, sent), Deadline::now()) == Push::ok) sent++;
    CHECK(sent > 5);
    CHECK(producer.problem().find("no consumer is attached") != std::string::npos);
    auto consumer = ring.consumer();
    Record record;
    for (std::uint32_t i = 0; i < sent; i++) {
        REQUIRE(consumer.poll(record) == Poll::record);
        CHECK(record.view.meta().repetition_id == i);
        consumer.release(record.ref);
    }
    CHECK(producer.push(draft_of(tokens, sent), Deadline::now()) == Push::ok);
}

TEST_CASE("ring: a record as large as the lane fits, a larger one is refused") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    Record record;
    // frame 64 + header 192 + directory of two columns 64 + instance_id 64
    const std::size_t most = ((64 << 10) - 64 - 192 - 64 - 64) / 4;
    for (int i = 0; i < 3; i++) {
        REQUIRE(producer.push(draft_of(tokens_of(10, 0), 0), Deadline::now()) == Push::ok);
        REQUIRE(consumer.poll(record) == Poll::record);
        consumer.release(record.ref);
        // The skip to the lane's start is shown alone, so that the consumer can pass it.
        const auto tokens = tokens_of(most, 0);
        Push push = producer.push(draft_of(tokens, 1), Deadline::now());
        if (push == Push::timed_out) {
            REQUIRE(consumer.poll(record) == Poll::empty);
            push = producer.push(draft_of(tokens, 1), Deadline::now());
        }
        REQUIRE(push == Push::ok);
        REQUIRE(consumer.poll(record) == Poll::record);
        CHECK(record.view.n_tokens() == most);
        consumer.release(record.ref);
    }
    CHECK(producer.push(draft_of(tokens_of(most + 1, 0), 0), Deadline::now()) == Push::too_large);
    CHECK(producer.problem().find("--lane-bytes 1MiB or more; 'rollring size --producers 1 ") !=
          std::string::npos);
}

TEST_CASE("ring: a successor consumer gets what was not released and nothing else") {
    const TestRing ring;
    auto producer = ring.producer();
    const auto tokens = tokens_of(50, 0);
    for (std::uint32_t i = 0; i < 20; i++) {
        REQUIRE(producer.push(draft_of(tokens, i), patience()) == Push::ok);
    }
    {
        auto first = ring.consumer();
        std::vector<RecordRef> refs;
        Record record;
        for (int i = 0; i < 15; i++) {
            REQUIRE(first.poll(record) == Poll::record);
            refs.push_back(record.ref);
        }
        first.release(refs[0]);
        first.release(refs[7]);
        REQUIRE(first.release_all(std::vector{refs[2], refs[14], refs[3]}, 41).has_value());
        CHECK(first.last_acked_step() == 41);
    }
    auto second = ring.consumer();
    CHECK(second.last_acked_step() == 41);
    std::vector<std::uint32_t> got;
    std::uint64_t redelivered = 0;
    Record record;
    while (second.poll(record) == Poll::record) {
        got.push_back(record.view.meta().repetition_id.value_or(0));
        redelivered += record.redelivered ? 1 : 0;
        second.release(record.ref);
    }
    CHECK(got == std::vector<std::uint32_t>{1, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19});
    CHECK(redelivered == 10);
    CHECK(second.stats().lost == 0);
}

TEST_CASE("ring: write in place, shrink, abandon") {
    const TestRing ring;
    auto producer = ring.producer({.checksum = Checksum::xxh3});
    auto consumer = ring.consumer();
    Draft shape("p");
    shape.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {1000, 0, 0, 0}, 1, nullptr});
    shape.add({static_cast<std::uint16_t>(Std::logprobs), dtype_f32, {1000, 0, 0, 0}, 1, nullptr});
    {
        Reservation thrown_away;
        REQUIRE(producer.reserve(shape, patience(), thrown_away) == Push::ok);
    }
    Reservation reservation;
    REQUIRE(producer.reserve(shape, patience(), reservation) == Push::ok);
    const auto ids = reservation.values<std::int32_t>(Std::token_ids);
    const auto logprobs = reservation.values<float>(Std::logprobs);
    REQUIRE(ids.size() == 1000);
    for (std::size_t i = 0; i < 300; i++) {
        ids[i] = static_cast<std::int32_t>(i);
        logprobs[i] = -0.5F * static_cast<float>(i);
    }
    reservation.shrink(300);
    REQUIRE(reservation.commit() == Push::ok);
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    CHECK(record.view.n_tokens() == 300);
    CHECK(record.view.token_ids()[299] == 299);
    CHECK(record.view.logprobs()[299] == -149.5F);
    CHECK(record.ref.bytes() < 4096);
    CHECK(record.sequence == 0);
    consumer.release(record.ref);
    CHECK(consumer.stats().torn == 0);
}

TEST_CASE("ring: lanes are handed out, taken back and reused") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    Record record;
    Event event;
    for (int round = 0; round < 5; round++) {
        auto a = ring.producer({.name = "a"});
        auto b = ring.producer({.name = "b"});
        CHECK(a.lane() != b.lane());
        const auto none =
            Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
        REQUIRE_FALSE(none.has_value());
        CHECK(none.error().code == Errc::no_free_lane);
        REQUIRE(a.push(draft_of(tokens_of(5, 0), 0), patience()) == Push::ok);
        a.close();
        b.close();
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        consumer.release(record.ref);
        while (consumer.producers_active() > 0) {
            REQUIRE(consumer.poll(record) == Poll::empty);
        }
    }
    int closed = 0;
    while (consumer.next_event(event)) closed += event.kind == Event::Kind::producer_closed ? 1 : 0;
    CHECK(closed == 10);
    CHECK(consumer.stats().producers_died == 0);
}

TEST_CASE("ring: a producer gets a lane that holds nothing, if there is one") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    auto first = ring.producer();
    REQUIRE(first.lane() == 0);
    REQUIRE(first.push(draft_of(tokens_of(5, 0), 0), patience()) == Push::ok);
    first.close();
    Record held;
    REQUIRE(consumer.wait(held, patience()) == Poll::record);
    Record none;
    while (consumer.producers_active() > 0) REQUIRE(consumer.poll(none) == Poll::empty);
    auto second = ring.producer();
    CHECK(second.lane() == 1);
    auto third = ring.producer();  // nothing else is left
    CHECK(third.lane() == 0);
    consumer.release(held.ref);
}

TEST_CASE("ring: one consumer at a time") {
    const TestRing ring;
    auto first = ring.consumer();
    const auto second =
        Consumer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().code == Errc::busy);
}

TEST_CASE("ring: names, absence and double creation are named errors") {
    CHECK(create_ring("no/slash").error().code == Errc::invalid_argument);
    CHECK(create_ring("").error().code == Errc::invalid_argument);
    CHECK(create_ring("x", {.lanes = 0}).error().code == Errc::invalid_argument);
    CHECK(Consumer::open("does-not-exist", {.attach_timeout = std::chrono::milliseconds(1)})
              .error()
              .code == Errc::not_found);
    const TestRing ring;
    CHECK(create_ring(ring.name()).error().code == Errc::already_exists);
    auto producer = ring.producer();
    CHECK(remove_ring(ring.name()).error().code == Errc::busy);
}

TEST_CASE("ring: stat from outside tells who is alive and what is pending") {
    const TestRing ring;
    auto producer = ring.producer({.name = "worker-7"});
    for (int i = 0; i < 3; i++) {
        REQUIRE(producer.push(draft_of(tokens_of(10, 0), 0), patience()) == Push::ok);
    }
    auto stat = stat_ring(ring.name());
    REQUIRE(stat.has_value());
    REQUIRE(stat->lanes.size() == 1);
    CHECK_FALSE(stat->consumer_alive);
    CHECK(stat->lanes[0].producer == "worker-7");
    CHECK(stat->lanes[0].alive);
    CHECK(stat->lanes[0].state == LaneState::active);
    CHECK(stat->lanes[0].depth_records == 3);
    CHECK(stat->lanes[0].committed_tokens == 30);
    CHECK(stat->lanes[0].oldest_age_ns >= 0);
    auto consumer = ring.consumer();
    Record record;
    while (consumer.poll(record) == Poll::record) consumer.release(record.ref);
    stat = stat_ring(ring.name());
    REQUIRE(stat.has_value());
    CHECK(stat->consumer_alive);
    CHECK(stat->lanes[0].depth_records == 0);
    CHECK(stat->lanes[0].depth_bytes == 0);
    CHECK(stat->lanes[0].released_records == 3);
    CHECK(stat->lanes[0].oldest_age_ns == -1);
    const auto diagnosis = diagnose_ring(ring.name());
    CHECK(diagnosis.health == RingHealth::ok);
    CHECK(diagnosis.in_use);
    CHECK_FALSE(diagnosis.has_records);
}

TEST_CASE("ring: a producer that waits learns that its ring was removed") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    const auto tokens = tokens_of(1000, 0);
    while (producer.push(draft_of(tokens, 0), Deadline::now()) == Push::ok) {
    }
    REQUIRE(remove_ring(ring.name(), true).has_value());
    CHECK(producer.push(draft_of(tokens, 0), patience()) == Push::closed);
    CHECK(producer.problem().find("was removed") != std::string::npos);
}
