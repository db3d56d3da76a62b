// Goal: the release of a record that is not held is refused, and does no harm.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "layout.hpp"
#include "ring_map.hpp"
#include "segment.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

void push(Producer& producer, std::uint32_t repetition, std::size_t count = 40) {
    const std::vector<std::int32_t> tokens(count, static_cast<std::int32_t>(repetition));
    Draft draft("prompt");
    draft.meta.repetition_id = repetition;
    draft.set(Std::token_ids, tokens);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
}

std::vector<RecordRef> take_refs(Consumer& consumer, std::size_t count) {
    std::vector<RecordRef> refs;
    Record record;
    while (refs.size() < count) {
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        refs.push_back(record.ref);
    }
    return refs;
}

// Lanes are refilled many times over: wrongly released bytes would stay, or be missed.
void check_sound(Producer& producer, Consumer& consumer, std::uint64_t released) {
    for (std::uint32_t i = 0; i < 2000; i++) {
        push(producer, i, 1 + i % 90);
        Record record;
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        REQUIRE(record.view.meta().repetition_id == i);
        REQUIRE(consumer.release(record.ref));
    }
    CHECK(consumer.stats().released == released + 2000);
    CHECK(consumer.stats().lost == 0);
    CHECK(consumer.stats().torn == 0);
}

}  // namespace

TEST_CASE("release: a second one is refused, in order and out of order") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (std::uint32_t i = 0; i < 6; i++) push(producer, i);
    const auto refs = take_refs(consumer, 6);
    CHECK(consumer.release(refs[2]));
    CHECK_FALSE(consumer.release(refs[2]));
    CHECK(consumer.release(refs[0]));
    CHECK_FALSE(consumer.release(refs[0]));
    for (const std::size_t i : {5, 4, 3, 1}) {
        TrajectoryView view;
        CHECK(consumer.view(refs[i], view));
        CHECK(view.meta().repetition_id == i);
        CHECK(consumer.release(refs[i]));
        CHECK_FALSE(consumer.view(refs[i], view));
    }
    for (const RecordRef& ref : refs) CHECK_FALSE(consumer.release(ref));
    CHECK(consumer.stats().strays == 8);
    check_sound(producer, consumer, 6);
    CHECK_FALSE(consumer.release(refs[3]));
}

TEST_CASE("release: what was never delivered is refused") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (std::uint32_t i = 0; i < 4; i++) push(producer, i);
    const auto refs = take_refs(consumer, 3);
    const RecordRef one = refs[1];
    const std::uint64_t end = one.position + one.bytes();
    const std::vector<RecordRef> bogus{
        {one.position, one.lane, one.lines - 1},
        {one.position, one.lane, one.lines + 1},
        {one.position, one.lane, one.lines + refs[2].lines},  // two in one
        {one.position, one.lane, 0},
        {one.position, one.lane, 1},
        {one.position, one.lane, ~std::uint32_t{0}},
        {one.position + 64, one.lane, one.lines - 1},
        {one.position + 1, one.lane, one.lines},
        {end - 64, one.lane, 2},  // the end of one and the beginning of the next
        {one.position + (64 << 10), one.lane, one.lines},
        {refs[2].position + refs[2].bytes(), one.lane, one.lines},  // committed, and not read
        {~std::uint64_t{63}, one.lane, one.lines},
        {one.position, 1, one.lines},
        {one.position, 2, one.lines},  // the spill
        {one.position, 3, one.lines},
        {one.position, ~std::uint32_t{0}, one.lines},
        {},
        {refs[2].position, refs[2].lane, refs[2].lines - 1},
        {refs[2].position, refs[2].lane, refs[2].lines + 1},
        {refs[2].position, refs[2].lane, 0},
        {refs[2].position, 1, refs[2].lines},
    };
    for (const RecordRef& ref : bogus) {
        TrajectoryView view;
        CHECK_FALSE(consumer.view(ref, view));
        CHECK_FALSE(consumer.release(ref));
        const std::vector list{refs[0], ref};
        const auto all = consumer.release_all(list, 0);
        REQUIRE_FALSE(all.has_value());
        CHECK(all.error().code == Errc::not_leased);
    }
    CHECK(consumer.stats().strays == bogus.size());
    CHECK(consumer.last_acked_step() == -1);
    CHECK(consumer.stats().released == 0);
    CHECK(consumer.release_all(refs, 0).has_value());
    CHECK(consumer.release(take_refs(consumer, 1)[0]));
    check_sound(producer, consumer, 4);
}

// More records than are remembered in the order of delivery, from two lanes.
TEST_CASE("release: of a thousand held records each is given back once, in any order") {
    const TestRing ring({.lanes = 2, .lane_bytes = 8 << 20});
    Producer producers[2] = {ring.producer(), ring.producer()};
    auto consumer = ring.consumer();
    std::vector<RecordRef> held;
    std::vector<RecordRef> gone;
    std::minstd_rand random(3);
    for (std::uint32_t i = 0; i < 6000; i++) {
        push(producers[random() % 2], i, 1 + random() % 90);
        held.push_back(take_refs(consumer, 1)[0]);
        const std::size_t most = i % 2000 < 1000 ? 1000 : 200;
        while (held.size() > most) {
            // From the oldest on for a while, then at random.
            const std::size_t at = i % 500 < 250 ? 0 : random() % held.size();
            REQUIRE(consumer.release(held[at]));
            gone.push_back(held[at]);
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        }
        if (gone.empty() || i % 7 != 0) continue;
        REQUIRE_FALSE(consumer.release(gone[random() % gone.size()]));
        TrajectoryView view;
        REQUIRE(consumer.view(held[random() % held.size()], view));
    }
    for (const RecordRef& ref : held) REQUIRE(consumer.release(ref));
    for (const RecordRef& ref : held) REQUIRE_FALSE(consumer.release(ref));
    CHECK(consumer.stats().released == 6000);
    check_sound(producers[0], consumer, 6000);
}

TEST_CASE("release: a list with one record twice, or one given back before, changes nothing") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (std::uint32_t i = 0; i < 5; i++) push(producer, i);
    const auto refs = take_refs(consumer, 5);
    const auto refused = [&](const std::vector<RecordRef>& list, std::string_view names) {
        const auto done = consumer.release_all(list, 1);
        REQUIRE_FALSE(done.has_value());
        CHECK(done.error().code == Errc::not_leased);
        CHECK(done.error().message.find(names) != std::string::npos);
    };
    refused({refs[1], refs[2], refs[1]}, "record 2 of 3");
    REQUIRE(consumer.release_all(std::vector{refs[1], refs[3]}, 1).has_value());
    refused({refs[0], refs[3], refs[2]}, "record 1 of 3");
    CHECK(consumer.stats().released == 2);
    REQUIRE(consumer.release_all(std::vector{refs[4], refs[0], refs[2]}, 1).has_value());
    check_sound(producer, consumer, 5);
}

TEST_CASE("release: steps do not go back") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (std::uint32_t i = 0; i < 4; i++) push(producer, i);
    const auto refs = take_refs(consumer, 4);
    const auto give = [&](std::size_t i, std::int64_t step) {
        return consumer.release_all(std::span(refs).subspan(i, 1), step);
    };
    REQUIRE(give(0, 7).has_value());
    for (const std::int64_t step : {std::int64_t{6}, std::int64_t{0}, std::int64_t{-2}}) {
        const auto lower = give(1, step);
        REQUIRE_FALSE(lower.has_value());
        CHECK(lower.error().code == Errc::invalid_argument);
        CHECK(lower.error().message.find("step " + std::to_string(step)) != std::string::npos);
        CHECK(lower.error().message.find("is 7") != std::string::npos);
    }
    CHECK(give(1, -1).has_value());
    CHECK(consumer.last_acked_step() == 7);
    CHECK(give(2, 7).has_value());
    CHECK(give(3, 8).has_value());
    CHECK(consumer.last_acked_step() == 8);
}

// Any process of the user could have written there.
TEST_CASE("release: the last step is what was acknowledged, whatever the page says by now") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (std::uint32_t i = 0; i < 3; i++) push(producer, i);
    const auto refs = take_refs(consumer, 3);
    REQUIRE(consumer.release_all(std::span(refs).first(1), 3).has_value());
    auto segment = Segment::attach(ring.name(), patience());
    REQUIRE(segment.has_value());
    auto page = segment->map(segment->geometry().reader_offset(), page_bytes, true);
    REQUIRE(page.has_value());
    auto& shared = page->at<ReaderControl>(0).last_acked_step;
    REQUIRE(shared.load() == 3);
    shared.store(std::int64_t{1} << 62);
    CHECK(consumer.last_acked_step() == 3);
    CHECK(consumer.release_all(std::span(refs).subspan(1, 1), 4).has_value());
    shared.store(-1);
    CHECK_FALSE(consumer.release_all(std::span(refs).last(1), 3).has_value());
    CHECK(consumer.release_all(std::span(refs).last(1), 4).has_value());
    CHECK(consumer.last_acked_step() == 4);
}

// The producer turns back early, then jumps over the record that is held: both leave a skip.
TEST_CASE("release: what a lane holds unreleased is counted without its skips") {
    constexpr std::uint64_t lane_bytes = 64 << 10;
    std::uint64_t apart_most = 0;
    for (std::uint32_t held = 0; held < 24; held++) {
        const TestRing ring({.lanes = 1, .lane_bytes = lane_bytes, .soft_bytes = 8 << 10});
        auto producer = ring.producer();
        auto consumer = ring.consumer();
        const auto map = RingMap::attach(ring.name(), patience());
        REQUIRE(map.has_value());
        std::uint64_t unreleased = 0;
        for (std::uint32_t sent = 0; sent < 400; sent++) {
            if (rollring::test::send(producer, {.tokens = 32}, Deadline::now()) != Push::ok) break;
            const auto refs = take_refs(consumer, 1);
            if (sent < held) REQUIRE(consumer.release(refs[0]));
            if (sent >= held) unreleased += refs[0].bytes();
            const std::uint64_t cursor = map->entry(0).cursor.load();
            apart_most = std::max(apart_most, map->owner(0).tail.load() - cursor);
            REQUIRE(stat_ring(ring.name())->lanes.at(0).depth_bytes == unreleased);
        }
    }
    CHECK(apart_most > lane_bytes);
}
