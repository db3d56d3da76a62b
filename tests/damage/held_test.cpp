// Goal: a dead producer's damage in its lane is not in the way of the records behind it.

#include "ring_map.hpp"
#include "support/pairs.hpp"
#include "wire.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// Hands over the n-th record in lane 0, from 0, where it lies.
void with_record(const TestRing& ring, int n, const auto& damage) {
    const auto segment = Segment::attach(ring.name(), Deadline::now());
    REQUIRE(segment.has_value());
    const Geometry& geometry = segment->geometry();
    const auto data = segment->map(geometry.data_offset(0), geometry.lane_bytes, true);
    REQUIRE(data.has_value());
    std::uint64_t at = 0;
    for (; n > 0; n--) at += data->at<Frame>(at).bytes;
    REQUIRE(data->at<Frame>(at).magic == frame_magic);
    damage(data->at<Frame>(at), data->at<RecordHeader>(at + line_bytes));
}

}  // namespace

TEST_CASE("damage: what is held in front of it is moved out of the lane") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * kib, .spill_bytes = 64 * kib});
    {
        const auto stash = open_stash(ring, freshest_pair);
        auto bad = ring.producer();
        send(bad, "held", 0, 2);
        send(bad, "damaged", 0, 2);
        Batch batch;
        while (stash->open_groups() < 2) {
            REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
        }
        with_record(ring, 1, [](Frame& frame, RecordHeader&) { frame.magic = 0; });
        bad.close();
        for (bool told = false; !told;) {
            REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
            for (Event event; stash->next_event(event);) {
                told |= event.kind == Event::Kind::producer_closed;
            }
        }
    }
    auto good = ring.producer();
    send(good, "held", 1, 2);
    const auto stash = open_stash(ring, freshest_pair);
    std::multiset<std::string> seen;
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(seen == std::multiset<std::string>{"held"});
    CHECK(stash->copies().evacuated_records == 1);
    CHECK(stash->account().conserved());
    REQUIRE(batch.ack(0).has_value());
}

TEST_CASE(
    "damage: a batch shows a record's header and directory as they were when it was admitted") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * kib});
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    send(producer, "pair", 0, 2);
    Batch batch;
    while (stash->open_groups() < 1) {
        REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
    }
    with_record(ring, 0, [](Frame&, RecordHeader& header) {
        header.repetition_id = 1;
        header.n_tokens = 7;
        header.column_count = 40;
    });
    send(producer, "pair", 1, 2);
    std::multiset<std::string> seen;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(batch.sequences()[0].view.n_tokens() == 200);
    CHECK(batch.sequences()[0].view.token_ids().size() == 200);
    REQUIRE(batch.ack(0).has_value());
}

TEST_CASE("damage: nor what became of a header before its record was moved to the spill") {
    const TestRing ring({.lanes = 1, .lane_bytes = 64 * kib, .spill_bytes = 64 * kib});
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    send(producer, "straggler", 0, 2);
    Batch batch;
    while (stash->open_groups() < 1) {
        REQUIRE(stash->next(batch, Deadline::after_ms(10)) == NextBatch::timed_out);
    }
    // Whole in itself: it passes every check, with half of the tokens.
    with_record(ring, 0, [](Frame&, RecordHeader& header) {
        auto* entry = reinterpret_cast<ColumnEntry*>(&header + 1);
        while (entry->column != static_cast<std::uint16_t>(Std::token_ids)) entry++;
        entry->shape[0] = header.n_tokens = 100;
        entry->bytes = 400;
    });
    std::multiset<std::string> seen;
    for (int i = 0; stash->copies().evacuated_records == 0; i++) {
        send(producer, std::to_string(i), 0, 2);
        send(producer, std::to_string(i), 1, 2);
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(i).has_value());
    }
    send(producer, "straggler", 1, 2);
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    check_pairs(batch, seen);
    CHECK(batch.sequences()[0].view.token_ids().size() == 200);
    CHECK(batch.cu_seqlens().back() == 400);
}
