// A producer that damages its lane is put in quarantine alone: the others go on, no process hangs,
// and the lane works again for the next producer.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/stash.hpp"
#include "support/test_ring.hpp"
#include "wire.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

constexpr std::uint64_t capacity = 64 << 10;

Push send(Producer& producer, std::uint32_t number) {
    return rollring::test::send(producer, {.repetition = number, .tokens = 500});
}

// The pages of one lane, writable, as a producer gone wild has them.
struct Wild {
    explicit Wild(const TestRing& ring, std::uint32_t lane)
        : map(std::move(*RingMap::attach(ring.name(), Deadline::now()))),
          page(*map.segment().map(map.geometry().owner_offset(lane), page_bytes, true)),
          data(*map.segment().map(map.geometry().data_offset(lane), capacity, true)) {}
    [[nodiscard]] LaneOwner& owner() const { return page.at<LaneOwner>(0); }
    // The last frame before the tail becomes something else, and the tail moves over it anew.
    void append(const std::function<void(Frame&)>& change) const {
        const std::uint64_t tail = owner().tail.load();
        Frame frame{};
        frame.magic = frame_magic;
        frame.kind = static_cast<std::uint16_t>(FrameKind::record);
        frame.bytes = 1024;
        frame.position = tail;
        frame.sequence = 3;
        frame.epoch = owner().epoch.load();
        frame.payload_bytes = 512;
        change(frame);
        std::memcpy(data.data() + tail % capacity, &frame, sizeof frame);
        owner().tail = tail + 1024;
    }
    // The lane's first record once more, in sequence, as if it had been written for another ring.
    void append_foreign() const {
        const std::uint64_t tail = owner().tail.load();
        const std::uint64_t bytes = data.at<Frame>(0).bytes;
        std::memcpy(data.data() + tail, data.data(), bytes);
        auto& frame = data.at<Frame>(tail);
        frame.position = tail;
        frame.sequence = 3;
        data.at<RecordHeader>(tail + line_bytes).run_id++;
        owner().tail = tail + bytes;
    }
    RingMap map;
    Mapping page;
    Mapping data;
};

struct Damage {
    const char* what;
    std::function<void(const Wild&)> make;
    bool quarantined = true;
    std::function<void(const Wild&)> later = {};  // when the consumer has seen the first
};

const std::vector<Damage> damages = {
    {"the tail moves back", [](const Wild& lane) { lane.owner().tail -= 64; }},
    {"the tail is far ahead", [](const Wild& lane) { lane.owner().tail += 5 * capacity; }},
    {"the tail is near the end of all numbers",
     [](const Wild& lane) { lane.owner().tail = ~std::uint64_t{63}; }},
    {"the tail is misaligned", [](const Wild& lane) { lane.owner().tail += 8; }},
    {"no frame at all", [](const Wild& lane) { lane.owner().tail += 1024; }},
    {"a frame without magic",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.magic = 1; }); }},
    {"a frame of an unknown kind",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.kind = 9; }); }},
    {"a frame of a lap ago",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.position -= capacity; }); }},
    {"a frame longer than the lane",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.bytes = capacity + 64; }); }},
    {"a frame past the tail",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.bytes = 2048; }); }},
    {"a frame of no bytes",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.bytes = 0; }); }},
    {"a frame of odd bytes",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.bytes = 1000; }); }},
    {"a payload longer than its frame",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.payload_bytes = 1000; }); }},
    {"more skips than a lap can have",
     [](const Wild& lane) {
         for (int i = 0; i < 12; i++) lane.append([](Frame& frame) { frame.kind = 2; });
     }},
    {"a frame of another lane",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.lane = 1; }); }},
    {"a frame of an epoch to come",
     [](const Wild& lane) { lane.append([](Frame& frame) { frame.epoch += 1; }); }},
    {"a whole record of another ring", [](const Wild& lane) { lane.append_foreign(); }},
    {"an epoch that goes up with its frames and comes down again",
     [](const Wild& lane) {
         lane.owner().epoch += 1000;
         lane.append([](Frame&) {});
         lane.owner().tail += 64;
     },
     true, [](const Wild& lane) { lane.owner().epoch -= 1000; }},
    {"a record of zeros", [](const Wild& lane) { lane.append([](Frame&) {}); }, false},
};

class Trial {
  public:
    explicit Trial(const Damage& damage) : damage_(damage) {
        consumer_.emplace(ring_.consumer());
        bad_.emplace(ring_.producer({.name = "bad"}));
        good_.emplace(ring_.producer({.name = "good"}));
    }

    void run() {
        for (std::uint32_t i = 0; i < 3; i++) REQUIRE(send(*bad_, i) == Push::ok);
        Record held;
        for (int i = 0; i < 3; i++) {
            REQUIRE(consumer_->wait(held, patience()) == Poll::record);
            if (i > 0) consumer_->release(held.ref);
            if (i == 0) first_ = held.ref;
        }
        damage_.make(Wild(ring_, bad_->lane()));
        good_lane_delivers();
        CHECK(consumer_->stats().quarantines == (damage_.quarantined ? 1 : 0));
        if (damage_.later) damage_.later(Wild(ring_, bad_->lane()));
        bad_->close();
        good_lane_delivers();
        consumer_->release(first_);  // held records of a damaged lane stay readable until then
        next_producer_delivers();    // the lane comes back
        if (std::string(damage_.what) == "a frame without magic") {
            CHECK(consumer_->stats().dropped_bytes == 1024);
        }
        next_producer_delivers();
        consumer_.reset();
        consumer_.emplace(ring_.consumer());
        next_producer_delivers();
        good_lane_delivers();
    }

  private:
    void good_lane_delivers() {
        Record record;
        for (int i = 0; i < 40; i++) {  // more than a lap
            REQUIRE(send(*good_, sent_) == Push::ok);
            REQUIRE(consumer_->wait(record, patience()) == Poll::record);
            REQUIRE(record.ref.lane == good_->lane());
            REQUIRE(record.view.meta().repetition_id == sent_++);
            consumer_->release(record.ref);
        }
    }

    void next_producer_delivers() {
        Record record;
        auto next = Producer::open(ring_.name(), {.attach_timeout = {}});
        for (const Deadline deadline = patience(); !next && !deadline.passed();) {
            REQUIRE(consumer_->poll(record) == Poll::empty);
            next = Producer::open(ring_.name(), {.attach_timeout = {}});
        }
        REQUIRE(next.has_value());
        for (std::uint32_t i = 0; i < 60; i++) {
            REQUIRE(send(*next, i) == Push::ok);
            REQUIRE(consumer_->wait(record, patience()) == Poll::record);
            REQUIRE(record.ref.lane == next->lane());
            REQUIRE(record.sequence == i);
            consumer_->release(record.ref);
        }
    }

    const Damage& damage_;
    TestRing ring_{{.lanes = 2, .lane_bytes = capacity}};
    std::optional<Consumer> consumer_;
    std::optional<Producer> bad_;
    std::optional<Producer> good_;
    RecordRef first_{};
    std::uint32_t sent_ = 0;
};

}  // namespace

TEST_CASE("hostile: a damaged lane is quarantined alone and comes back") {
    for (const Damage& damage : damages) {
        const std::string what = damage.what;
        CAPTURE(what);
        Trial(damage).run();
    }
}

TEST_CASE("hostile: groups that a damaged lane announces take no places of others") {
    for (const bool plausible : {false, true}) {
        CAPTURE(plausible);
        const TestRing ring({.lanes = 2, .lane_bytes = capacity});
        auto stash =
            Stash::open(ring.name(), {.batch = BatchTarget::groups(1), .max_open_groups = 100});
        REQUIRE(stash.has_value());
        auto bad = ring.producer({.name = "bad"});
        auto good = ring.producer({.name = "good"});
        Batch batch;
        REQUIRE((*stash)->next(batch, Deadline::now()) == NextBatch::timed_out);
        const Wild lane(ring, bad.lane());
        lane.owner().groups_opened += plausible ? 100 : std::uint64_t{1} << 40;
        if (plausible) {  // then it takes the quarantine
            CHECK(good.open_group("prompt", 0, Deadline::now()) == Push::timed_out);
            lane.owner().tail += 1024;
            for (Event event{}; event.kind != Event::Kind::quarantined;) {
                REQUIRE((*stash)->next(batch, Deadline::now()) == NextBatch::timed_out);
                while (event.kind != Event::Kind::quarantined && (*stash)->next_event(event)) {
                }
            }
        }
        CHECK(good.open_group("prompt", 0, patience()) == Push::ok);
    }
}

TEST_CASE("hostile: a stream of skips is followed a few at a time") {
    const TestRing ring({.lanes = 1, .lane_bytes = capacity});
    auto consumer = ring.consumer();
    auto bad = ring.producer();
    Record record;
    REQUIRE(consumer.poll(record) == Poll::empty);
    const Wild lane(ring, 0);
    for (int i = 0; i < 60; i++) lane.append([](Frame& frame) { frame.kind = 2; });
    const ReaderEntry& entry = lane.map.entry(0);
    for (int polls = 1; polls <= 8; polls++) {
        REQUIRE(consumer.poll(record) == Poll::empty);
        CHECK(entry.head.load() == std::min(polls * 8, 60) * 1024);
    }
    CHECK(consumer.stats().quarantines == 0);
}
