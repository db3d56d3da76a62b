// A frame with one damaged field is refused by all readers of frames: none takes a frame that
// another refuses.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "checked_frame.hpp"
#include "pages.hpp"
#include "rollring/stash.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct Damage {
    const char* name;
    void (*make)(Frame& frame);
};

constexpr std::array<Damage, 12> damages{{
    {"no magic", [](Frame& frame) { frame.magic = 0; }},
    {"another magic", [](Frame& frame) { frame.magic ^= 1U << 31; }},
    {"no kind", [](Frame& frame) { frame.kind = 0; }},
    {"a kind that is none", [](Frame& frame) { frame.kind = 3; }},
    {"no bytes", [](Frame& frame) { frame.bytes = 0; }},
    {"less than a line", [](Frame& frame) { frame.bytes = line_bytes / 2; }},
    {"half a line more", [](Frame& frame) { frame.bytes += line_bytes / 2; }},
    {"more than was committed", [](Frame& frame) { frame.bytes += line_bytes; }},
    {"more than there can be", [](Frame& frame) { frame.bytes = ~std::uint64_t{63}; }},
    {"the position of a later lap", [](Frame& frame) { frame.position += 1 << 20; }},
    {"a payload that leaves the frame",
     [](Frame& frame) { frame.payload_bytes = frame.bytes - line_bytes + 1; }},
    {"a payload without an end", [](Frame& frame) { frame.payload_bytes = ~std::uint64_t{0}; }},
}};

// One record of "prompt", committed and not read.
struct OneRecord {
    OneRecord()
        : ring({.lanes = 1, .lane_bytes = 64 << 10}), pages(ring), producer(ring.producer()) {
        REQUIRE(push(producer, 100, 0, patience()) == Push::ok);
    }
    [[nodiscard]] Frame& frame() const { return *reinterpret_cast<Frame*>(pages.data(0)); }
    [[nodiscard]] std::int64_t oldest_age_ns() const {
        return stat_ring(ring.name())->lanes.at(0).oldest_age_ns;
    }

    TestRing ring;
    Pages pages;
    Producer producer;
};

}  // namespace

TEST_CASE("frame: the check itself refuses each damage, and a frame beyond the end") {
    alignas(64) std::array<std::byte, 4096> memory{};
    const NativePlatform::Frames frames{memory.data()};
    const LaneSize size(memory.size());
    Frame whole{};
    whole.magic = frame_magic;
    whole.kind = static_cast<std::uint16_t>(FrameKind::record);
    whole.bytes = 1024;
    whole.position = 2048;
    whole.payload_bytes = 960;
    Frame read;
    const auto checked = [&](const Frame& frame, std::uint64_t position, std::uint64_t end) {
        std::memcpy(memory.data() + size.offset(position), &frame, sizeof frame);
        return checked_frame(frames, size, position, end, read);
    };
    CHECK(checked(whole, 2048, 3072));
    CHECK(read.payload_bytes == 960);
    for (const Damage& damage : damages) {
        CAPTURE(damage.name);
        Frame frame = whole;
        damage.make(frame);
        CHECK_FALSE(checked(frame, 2048, 3072));
    }
    CHECK_FALSE(checked(whole, 2048, 3008));
    // A lap on, where it is another one's place, and where the lane ends before it does.
    CHECK_FALSE(checked(whole, 2048 + 4096, ~std::uint64_t{0}));
    whole.position = 4096 - 512;
    CHECK_FALSE(checked(whole, 4096 - 512, 8192));
    // A skip has no payload to look at.
    Frame skip{};
    skip.magic = frame_magic;
    skip.kind = static_cast<std::uint16_t>(FrameKind::skip);
    skip.bytes = 64;
    skip.payload_bytes = ~std::uint64_t{0};
    CHECK(checked(skip, 0, 64));
}

TEST_CASE("frame: a consumer that has not read it, and who looks from outside, refuse it") {
    for (const Damage& damage : damages) {
        CAPTURE(damage.name);
        const OneRecord one;
        REQUIRE(one.oldest_age_ns() >= 0);
        damage.make(one.frame());
        CHECK(one.oldest_age_ns() == -1);
        auto consumer = one.ring.consumer();
        Record record;
        REQUIRE(consumer.poll(record) == Poll::empty);
        CHECK(consumer.stats().quarantines == 1);
    }
}

TEST_CASE("frame: a view of a record that was delivered refuses it") {
    for (const Damage& damage : damages) {
        CAPTURE(damage.name);
        const OneRecord one;
        auto consumer = one.ring.consumer();
        Record record;
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        TrajectoryView view;
        REQUIRE(consumer.view(record.ref, view));
        damage.make(one.frame());
        CHECK_FALSE(consumer.view(record.ref, view));
        CHECK(view.token_ids().empty());
        CHECK(consumer.release(record.ref));  // by the fields that were checked when it came
    }
}

TEST_CASE("frame: a receipt does not settle it, and the next stash refuses it") {
    const StashOptions options{.group_size = 1, .batch = BatchTarget::groups(1)};
    for (const bool damaged : {false, true}) {
        for (const Damage& damage : damages) {
            CAPTURE(damage.name);
            const OneRecord one;
            std::string receipt;
            {
                auto stash = *Stash::open(one.ring.name(), options);
                Batch batch;
                REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
                receipt = batch.receipt();
            }
            if (damaged) damage.make(one.frame());
            auto stash = *Stash::open(one.ring.name(), options);
            CHECK(*stash->settle(receipt, 1) == (damaged ? 0 : 1));
            Batch batch;
            CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
            CHECK(stash->stats().quarantines == (damaged ? 1 : 0));
        }
    }
}
