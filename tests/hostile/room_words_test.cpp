// The words of admission by bytes (docs/progress.md), overwritten: a claim, a wish or owed bytes
// that could not be honest decide nothing, and their owner says them again.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "pages.hpp"
#include "rollring/stash.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// So many lines that no group fits beside them, and that a lane might claim.
constexpr std::uint32_t lines_of_all_room = 2'000;

// The stash looks at everything once a second, and says again what it says.
template <class Word, class T>
void await_word(Stash& stash, const Word& word, T value) {
    Batch batch;
    const Deadline deadline = patience();
    while (peek(word) != value && !deadline.passed()) {
        CHECK(stash.next(batch, Deadline::after_ms(1)) == NextBatch::timed_out);
    }
    REQUIRE(peek(word) == value);
}

}  // namespace

TEST_CASE("words: a lane that nobody has claims nothing, nor one that claims what cannot be") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    const auto stash = open_stash(ring, freshest_pair);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    pass_pairs(producer, *stash, "a", 2, seen);
    pages.owner(1).lines_claimed = lines_of_all_room;
    pages.owner(1).groups_opened = peek(pages.control().max_open_groups);
    pass_pairs(producer, *stash, "b", 20, seen);
    auto other = ring.producer();
    for (const std::uint32_t lines : {~0U, 1U << 31, 1U << 20}) {
        pages.owner(1).lines_claimed = lines;
        pass_pairs(producer, *stash, "c" + std::to_string(lines), 20, seen);
    }
    CHECK(pages.control().spill_reserved_bytes <= small_lanes.spill_bytes.value());
}

TEST_CASE("words: what a producer has claimed is said again with its next claim") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    const auto stash = open_stash(ring, freshest_pair);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    pass_pairs(producer, *stash, "a", 2, seen);
    pages.owner(0).lines_claimed += lines_of_all_room;
    pages.owner(0).groups_opened += peek(pages.control().max_open_groups) - 1;
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    // The groups are counted before the first of ours says its number again.
    pages.owner(0).groups_opened = pages.entry(0).groups_arrived.load();
    pass_pairs(producer, *stash, "b", 20, seen);
}

TEST_CASE("words: what the stash has seen of claims is said again") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    const auto stash = open_stash(ring, freshest_pair);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    pass_pairs(producer, *stash, "a", 2, seen);
    const std::uint32_t lines = pages.entry(0).lines_arrived;
    const std::uint64_t groups = pages.entry(0).groups_arrived;
    pages.entry(0).lines_arrived = lines - lines_of_all_room;
    await_word(*stash, pages.entry(0).lines_arrived, lines);
    pages.entry(0).groups_arrived = ~std::uint64_t{0};
    await_word(*stash, pages.entry(0).groups_arrived, groups);
    pass_pairs(producer, *stash, "b", 20, seen);
    // A producer that begins at an overwritten position.
    producer.close();
    Batch batch;
    for (const Deadline deadline = patience(); !pages.map.lane_is_idle(0) && !deadline.passed();) {
        CHECK(stash->next(batch, Deadline::after_ms(1)) == NextBatch::timed_out);
    }
    REQUIRE(pages.map.lane_is_idle(0));
    pages.entry(0).lines_arrived = 7 * lines_of_all_room;
    pages.entry(0).groups_arrived = 3;
    auto next = ring.producer();
    pass_pairs(next, *stash, "c", 40, seen);
    CHECK(pages.entry(0).lines_arrived.load() == pages.owner(0).lines_claimed.load());
}

TEST_CASE("words: the room for groups is said again") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    const auto stash = open_stash(ring, freshest_pair);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    pass_pairs(producer, *stash, "a", 2, seen);
    ReaderControl& control = pages.control();
    int round = 0;
    for (const std::uint64_t word : {~std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0}}) {
        control.room_bytes = word;
        control.owed_bytes = word;
        control.room_most = word;
        control.record_lines = static_cast<std::uint32_t>(word);
        control.group_size = static_cast<std::uint32_t>(word);
        control.group_extra = static_cast<std::uint32_t>(word);
        control.spill_reserved_bytes = word;
        Batch batch;
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        CHECK(control.owed_bytes.load() < small_lanes.lane_bytes);
        CHECK(control.group_size.load() == 2);
        CHECK(control.group_extra.load() == 0);
        CHECK(control.room_most.load() > 2 * small_lanes.lane_bytes);
        pass_pairs(producer, *stash, "b" + std::to_string(round++), 20, seen);
    }
}

TEST_CASE("words: a stash takes over what was written over its predecessor's room") {
    for (const std::uint64_t word : {~std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 40}) {
        const TestRing ring(small_lanes);
        const Pages pages(ring);
        auto producer = ring.producer();
        std::multiset<std::string> seen;
        pass_pairs(producer, *open_stash(ring, freshest_pair), "a", 2, seen);
        pages.control().owed_bytes = word;
        pages.control().room_bytes = word;
        pages.control().record_lines = static_cast<std::uint32_t>(word);
        pages.control().spill_reserved_bytes = word;
        const auto stash = open_stash(ring, freshest_pair);
        Batch batch;
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);  // all is read
        CHECK(pages.control().record_lines.load() <= small_lanes.lane_bytes / 64);
        CHECK(pages.control().spill_reserved_bytes.load() == small_lanes.spill_bytes.value());
        pass_pairs(producer, *stash, "b", 20, seen);
    }
}

TEST_CASE("words: a wish that nothing could grant neither hangs nor grows beyond the spill") {
    RingOptions options = small_lanes;
    options.spill_bytes = std::uint64_t{64} << 20;  // so that there is something to grow
    for (const std::uint64_t wish :
         {~std::uint64_t{0}, ~std::uint64_t{0} / 4 * 3, std::uint64_t{1} << 63}) {
        CAPTURE(wish);
        const TestRing ring(options);
        const Pages pages(ring);
        const auto stash = open_stash(ring, freshest_pair);
        auto producer = ring.producer();
        std::multiset<std::string> seen;
        pass_pairs(producer, *stash, "a", 2, seen);
        send(producer, "open", 0);  // something is owed
        Batch batch;
        CHECK(stash->next(batch, Deadline::after_ms(1)) == NextBatch::timed_out);
        auto& openers = pages.all.at<Bell>(pages.geometry.bells_offset()).openers;
        pages.owner(2).wants_place_bytes = wish;  // the spill's page: no producer's
        openers = 1;
        CHECK(stash->next(batch, Deadline::after_ms(50)) == NextBatch::timed_out);
        CHECK(pages.control().spill_reserved_bytes.load() == std::uint64_t{1} << 20);  // the least
        pages.owner(0).wants_place_bytes = wish;
        pages.owner(0).wants_room_bytes = wish;
        pages.owner(0).record_lines = ~0U;
        openers = 1;
        CHECK(stash->next(batch, Deadline::after_ms(50)) == NextBatch::timed_out);
        CHECK(pages.control().spill_reserved_bytes.load() == *options.spill_bytes);
        pass_pairs(producer, *stash, "b", 20, seen);
    }
}

TEST_CASE("words: a bound of groups that nobody set is lifted by who counts none") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto consumer = ring.consumer();
    Record record;
    CHECK(consumer.wait(record, Deadline::after_ms(1)) == Poll::timed_out);
    pages.control().max_open_groups = 1;
    pages.control().open_groups = 1;
    auto producer = ring.producer();
    const Deadline deadline = patience();
    while (pages.control().max_open_groups.load() != 0 && !deadline.passed()) {
        CHECK(consumer.wait(record, Deadline::after_ms(1)) == Poll::timed_out);
    }
    CHECK(push(producer, 10, 0, Deadline::now()) == Push::ok);
}

TEST_CASE("words: a lane with a false tail that is given up keeps no fresh group back") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    const auto stash = open_stash(ring, freshest_pair);
    auto producer = ring.producer();
    auto victim = std::make_unique<Producer>(ring.producer());
    pages.owner(victim->lane()).tail = std::uint64_t{1} << 60;
    NextBatch got = NextBatch::closed;
    Batch batch;
    std::thread trainer([&] { got = stash->next(batch, patience()); });
    const ReaderEntry& entry = pages.entry(victim->lane());
    const Deadline deadline = patience();
    const auto await = [&](const auto& done) {
        while (!done() && !deadline.passed()) std::this_thread::yield();
        CHECK(done());
    };
    await([&] { return peek(entry.quarantine) != 0; });
    victim.reset();
    await([&] { return observe(entry.retired_epoch) == 1; });
    for (std::uint32_t i = 0; i < 2; i++) CHECK(try_send(producer, "a", i, patience()));
    trainer.join();
    CHECK(got == NextBatch::batch);
}
