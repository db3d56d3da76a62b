// Overwritten words of shared memory: every process that uses them stays within its memory and its
// time, and stopped work goes on.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "journal.hpp"
#include "key_table.hpp"
#include "pages.hpp"
#include "ring_map.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "rollring/stat.hpp"
#include "support/pairs.hpp"
#include "support/splitmix64.hpp"
#include "wire.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t lane_size = 64 * kib;

// Records of all lengths get through a new producer of lane 0, whatever was wrong before.
void lane_works(const TestRing& ring, Consumer& consumer) {
    Record record;
    auto opened = Producer::open(ring.name(), {.attach_timeout = {}});
    for (const Deadline deadline = patience(); !opened && !deadline.passed();) {
        REQUIRE(consumer.wait(record, Deadline::after_ms(1)) == Poll::timed_out);
        opened = Producer::open(ring.name(), {.attach_timeout = {}});
    }
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    for (std::uint32_t tokens = 1; tokens <= 400; tokens++) {
        const Deadline deadline = patience();
        while (push(*opened, tokens, tokens, Deadline::now()) == Push::timed_out) {
            REQUIRE(consumer.wait(record, Deadline::after_ms(1)) == Poll::timed_out);
            REQUIRE(!deadline.passed());
        }
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        REQUIRE(record.view.token_ids().size() == tokens);
        consumer.release(record.ref);
    }
    opened->close();
    await_close(consumer);
}

}  // namespace

TEST_CASE("words: wherever a lane's tail says that it is, its producer writes within the lane") {
    constexpr std::uint64_t capacity = 4096;
    for (const std::uint64_t start : {32U, 1U, 63U, 4095U, 4064U, 8161U}) {
        alignas(64) std::array<std::byte, capacity + line_bytes> memory{};
        std::atomic<std::uint64_t> tail{start};
        std::atomic<std::uint64_t> head{start};
        NativeWriter writer(tail, head, NativePlatform::Frames{memory.data()}, capacity, capacity);
        for (std::uint64_t i = 0; i < 200; i++) {
            Frame frame{};
            frame.bytes = line_bytes * (1 + i % 9);
            if (writer.reserve(frame.bytes) == Reserve::ok) {
                REQUIRE(writer.offset() + frame.bytes <= capacity);
                writer.commit(frame);
            }
            static_cast<void>(writer.show());
            head = tail.load();
        }
        for (std::uint64_t i = capacity; i < memory.size(); i++) {
            REQUIRE(memory[i] == std::byte{0});
        }
    }
}

TEST_CASE("words: a lane in quarantine whose released-bits were written over is given back") {
    const TestRing ring({.lanes = 1, .lane_bytes = lane_size});
    const Pages pages(ring);
    auto bad = ring.producer();
    for (int i = 0; i < 2; i++) REQUIRE(push(bad, 200, 0, patience()) == Push::ok);
    {
        auto consumer = ring.consumer();
        std::array<Record, 2> records;
        for (Record& record : records) REQUIRE(consumer.wait(record, patience()) == Poll::record);
        REQUIRE(consumer.release(records[1].ref));
        pages.bits(0) = std::uint64_t{1} << records[1].ref.position / line_bytes;  // of its first
    }
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    consumer.release(record.ref);
    REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    pages.owner(0).tail = lane_size * 9 + 1;
    REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    REQUIRE(consumer.stats().quarantines == 1);
    bad.close();
    lane_works(ring, consumer);
}

TEST_CASE("words: a lane that is called damaged behind its end is given back") {
    const TestRing ring({.lanes = 1, .lane_bytes = lane_size});
    const Pages pages(ring);
    std::optional<Producer> bad;
    {
        auto consumer = ring.consumer();
        auto earlier = ring.producer();
        REQUIRE(push(earlier, 200, 0, patience()) == Push::ok);
        Record held;
        REQUIRE(consumer.wait(held, patience()) == Poll::record);
        earlier.close();
        await_close(consumer);
        bad = ring.producer();
    }
    pages.entry(0).delivered = pages.owner(0).tail + 1024;
    pages.entry(0).quarantine = 7;
    auto consumer = ring.consumer();
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    consumer.release(record.ref);
    REQUIRE(consumer.wait(record, Deadline::after_ms(10)) == Poll::timed_out);
    bad->close();
    lane_works(ring, consumer);
}

TEST_CASE("words: what is written over the journal meanwhile is not what is released") {
    std::array<JournalEntry, 4> shared{};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::int64_t> step{0};
    std::atomic<std::int64_t> last_step{-1};
    Journal<NativePlatform> journal(count, step, last_step, {shared.data()}, shared.size());
    const std::array<JournalEntry, 3> records{{{64, 0, 1}, {128, 1, 2}, {256, 2, 3}}};
    std::size_t marked = 0;
    journal.release_all(records, 7, [&](const JournalEntry& entry) {
        shared.fill({~std::uint64_t{0}, ~0U, ~0U});
        REQUIRE(marked < records.size());
        CHECK(entry.position == records[marked].position);
        CHECK(entry.lane == records[marked].lane);
        CHECK(entry.lines == records[marked].lines);
        marked++;
    });
    CHECK(marked == records.size());
    CHECK(last_step == 7);
}

TEST_CASE("words: a lane whose start is impossible is not taken, and a consumer mends it") {
    for (const std::uint64_t restart_at :
         {std::uint64_t{32}, std::uint64_t{1} << 40, ~std::uint64_t{0}, std::uint64_t{lane_size}}) {
        CAPTURE(restart_at);
        const TestRing ring({.lanes = 1, .lane_bytes = lane_size});
        const Pages pages(ring);
        pages.entry(0).restart_at = restart_at;
        if (restart_at % 64 != 0) {
            const auto refused = Producer::open(ring.name(), {.attach_timeout = {}});
            REQUIRE(!refused.has_value());
            CHECK(refused.error().code == Errc::no_free_lane);
        }
        auto consumer = ring.consumer();
        lane_works(ring, consumer);
        // And once more, under a consumer that has seen it whole.
        pages.entry(0).restart_at = restart_at;
        lane_works(ring, consumer);
        lane_works(ring, consumer);
    }
}

TEST_CASE("words: a lane that is called damaged, and is not, takes producers again") {
    const TestRing ring({.lanes = 1, .lane_bytes = lane_size});
    const Pages pages(ring);
    auto consumer = ring.consumer();
    lane_works(ring, consumer);
    auto producer = ring.producer();
    REQUIRE(push(producer, 10, 0, patience()) == Push::ok);
    Record record;
    REQUIRE(consumer.wait(record, patience()) == Poll::record);
    consumer.release(record.ref);
    pages.entry(0).quarantine = 77;
    producer.close();
    await_close(consumer);
    lane_works(ring, consumer);
}

TEST_CASE("words: released-bits that were written over do not stop a lane") {
    for (const std::uint64_t bits : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{0x5555}}) {
        CAPTURE(bits);
        const TestRing ring({.lanes = 1, .lane_bytes = lane_size});
        const Pages pages(ring);
        auto consumer = ring.consumer();
        auto producer = ring.producer();
        std::vector<RecordRef> held;
        Record record;
        for (std::uint32_t i = 0; i < 20; i++) {
            REQUIRE(push(producer, 300, i, patience()) == Push::ok);
            REQUIRE(consumer.wait(record, patience()) == Poll::record);
            held.push_back(record.ref);
        }
        for (std::size_t i = 10; i < held.size(); i++) consumer.release(held[i]);
        for (std::size_t word = 0; word < lane_size / 64 / 64; word++) {
            (&pages.bits(0))[word] = bits;
        }
        for (std::size_t i = 0; i < 10; i++) consumer.release(held[i]);
        // Three laps more: they need all of the lane.
        for (std::uint32_t i = 0; i < 120; i++) {
            const Deadline deadline = patience();
            Push pushed = Push::timed_out;
            while (pushed == Push::timed_out && !deadline.passed()) {
                pushed = push(producer, 300, i, Deadline::now());
                if (consumer.wait(record, Deadline::after_ms(1)) == Poll::record) {
                    consumer.release(record.ref);
                }
            }
            REQUIRE(pushed == Push::ok);
        }
    }
}

TEST_CASE("words: a ring without a spill, whose spill's page says that there is something") {
    const TestRing ring({.lanes = 1, .lane_bytes = lane_size, .spill_bytes = 0});
    const Pages pages(ring);
    pages.owner(1).tail = 640;
    pages.owner(1).epoch = 1;
    auto consumer = ring.consumer();
    lane_works(ring, consumer);
    REQUIRE(remove_ring(ring.name(), true).has_value());
    Record record;
    CHECK(consumer.wait(record, patience()) == Poll::closed);  // it is not waited for either
}

TEST_CASE("words: a record in the spill that names a lane which is none is given up alone") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    {
        const auto stash = open_stash(ring, freshest_pair);
        send(producer, "old", 0);
        pass_pairs(producer, *stash, "p", 60, seen);
        REQUIRE(stash->copies().evacuated_records == 1);
    }
    auto* frame = reinterpret_cast<Frame*>(pages.data(2));
    REQUIRE(frame->magic == frame_magic);
    frame->lane = 60'000;
    const auto stash = open_stash(ring, freshest_pair);
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);  // all is read
    CHECK(stash->explain(4).empty());
    // And the spill takes stragglers again.
    send(producer, "older", 0);
    pass_pairs(producer, *stash, "q", 60, seen);
    CHECK(stash->copies().evacuated_records == 1);
    REQUIRE(stash->explain(4).size() == 1);
    send(producer, "older", 1);
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(seen.count("older") == 1);
}

TEST_CASE("words: what is written over the spill's own page meanwhile is not asked") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto producer = ring.producer();
    // As if a producer had it, and had closed.
    pages.owner(2).epoch = 1;
    pages.owner(2).state = static_cast<std::uint32_t>(OwnerState::closed);
    const auto stash = open_stash(ring, freshest_pair);
    std::multiset<std::string> seen;
    send(producer, "old", 0);
    for (const std::uint64_t tail : {std::uint64_t{8}, ~std::uint64_t{0}, std::uint64_t{1} << 30}) {
        pages.owner(2).tail = tail;
        pass_pairs(producer, *stash, "p" + std::to_string(tail) + "-", 60, seen);
    }
    CHECK(stash->copies().evacuated_records >= 1);
    send(producer, "old", 1);
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(seen.count("old") == 1);
}

TEST_CASE("words: a frame that is changed after it was read moves as who it was") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    std::multiset<std::string> seen;
    send(producer, "old", 0);
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    auto* frame = reinterpret_cast<Frame*>(pages.data(producer.lane()));
    frame->lane = 60'000;
    frame->sequence = 1 << 20;
    pass_pairs(producer, *stash, "p", 60, seen);
    REQUIRE(stash->copies().evacuated_records == 1);
    const auto* moved = reinterpret_cast<const Frame*>(pages.data(2));
    CHECK(moved->lane == producer.lane());
    CHECK(moved->sequence == 0);
}

TEST_CASE("words: a receipt is of what was checked, and settles it whatever the frame says") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto producer = ring.producer();
    std::string receipt;
    {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        send(producer, "p", 0);
        send(producer, "p", 1);
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        const std::string before = batch.receipt();
        reinterpret_cast<Frame*>(pages.data(producer.lane()))->sequence += 5;
        receipt = batch.receipt();
        CHECK(receipt == before);
    }
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    CHECK(*stash->settle(receipt, 7) == 2);
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    CHECK(stash->open_groups() == 0);
}

TEST_CASE("words: a reservation whose header and directory are written over stays in its room") {
    const TestRing ring({.lanes = 1, .lane_bytes = lane_size});
    const Pages pages(ring);
    auto consumer = ring.consumer();
    auto producer = ring.producer({.checksum = Checksum::xxh3});
    rollring::test::Dice dice{11};
    const auto next = [&] { return dice.next() >> 33; };
    Record record;
    std::uint64_t offset = 0;
    for (int i = 0; i < 3'000; i++) {
        Draft shape("in place");
        shape.add({0, dtype_i32, {100, 0, 0, 0}, 1, nullptr});
        shape.add({2, dtype_f32, {100, 0, 0, 0}, 1, nullptr});
        Reservation room;
        REQUIRE(producer.reserve(shape, patience(), room) == Push::ok);
        offset = pages.owner(0).tail % lane_size;
        std::byte* const from = pages.data(0) + offset + line_bytes;
        for (int words = 0; words < 3; words++) {
            const std::uint64_t at = next() % ((sizeof(RecordHeader) + 3 * 32) / 4) * 4;
            // A record of another ring is the lane's damage, not the record's: another test.
            if (at / 8 * 8 == offsetof(RecordHeader, run_id)) continue;
            const std::uint32_t word =
                static_cast<std::uint32_t>(next() % 3 == 0 ? next() % 300 : next() << next() % 9);
            std::memcpy(from + at, &word, sizeof word);
        }
        const auto within = [&](std::span<const std::byte> bytes) {
            return bytes.empty() || bytes.size() <= lane_size - line_bytes;
        };
        CHECK(within(std::as_bytes(room.values<std::int32_t>(Std::token_ids))));
        CHECK(within(room.bytes(2, dtype_f32)));
        for (float& value : room.values<float>(Std::logprobs)) value = 1;
        if (next() % 2 == 0) room.shrink(static_cast<std::uint32_t>(next() % 100));
        static_cast<void>(room.view());
        static_cast<void>(room.commit());
        for (Event event; consumer.next_event(event);) {
        }
        while (consumer.poll(record) == Poll::record) consumer.release(record.ref);
    }
    CHECK(consumer.stats().torn > 100);
    CHECK(consumer.stats().quarantines == 0);
}

TEST_CASE("words: a table of keys without an empty place ends every look-up") {
    std::array<std::atomic<std::uint64_t>, 64> words{};
    for (std::size_t i = 0; i < words.size(); i++) words[i] = i + 1000;
    KeyTable table(words.data(), words.size());
    const GroupKey key{3, 4};
    table.insert(key);
    table.erase(key);
    table.erase({1000, 0});  // one of them: it goes
    CHECK(!table.holds({1000, 0}));
    table.insert(key);
    CHECK(table.holds(key));
    table.erase(key);
    CHECK(!table.holds(key));
}

TEST_CASE("words: admission goes on when the consumer's bounds were written over") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    std::multiset<std::string> seen;
    pass_pairs(producer, *stash, "p", 5, seen);
    producer = ring.producer();  // it has taken no places beforehand
    pages.control().max_open_groups = 1;
    pages.control().open_groups = std::uint64_t{1} << 40;
    pages.control().max_open_bytes = 1;
    pages.control().held_bytes = std::uint64_t{1} << 40;
    const Deadline deadline = patience();
    Batch batch;
    while (!try_send(producer, "q", 0, Deadline::now()) && !deadline.passed()) {
        CHECK(stash->next(batch, Deadline::after_ms(5)) == NextBatch::timed_out);
    }
    send(producer, "q", 1);
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(seen.count("q") == 1);
}

TEST_CASE("words: tombstones and rows that say anything are read as that") {
    const TestRing ring(small_lanes);
    const Pages pages(ring);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    {
        const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
        pass_pairs(producer, *stash, "p", 3, seen);
        send(producer, "open", 0);
        Batch batch;
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        auto* tombstones = &pages.all.at<Tombstone>(pages.geometry.tombstones_offset());
        tombstones[1].over_ns = std::numeric_limits<std::int64_t>::max();
        tombstones[2].over_ns = std::numeric_limits<std::int64_t>::min();
        auto& row = pages.all.at<GroupRow>(pages.geometry.board_offset());
        row.opened_ns = std::numeric_limits<std::int64_t>::min();
        row.changed_ns = std::numeric_limits<std::int64_t>::max();
        row.state = 99;
        const auto stat = stat_stash(ring.name());
        REQUIRE(stat.has_value());
        for (const GroupStat& group : stat->groups) {
            CHECK(group.age_ns == 0);
            CHECK(group.unchanged_ns == 0);
        }
    }
    const auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    pass_pairs(producer, *stash, "q", 3, seen);
    CHECK(seen.count("q2") == 1);
}
