// Goal: records that are carried from a ring into another one arrive whole, in their producer's
// order and once, wherever the carrier dies.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "extras/relay/inbox.hpp"
#include "extras/relay/outbox.hpp"
#include "support/in_child.hpp"
#include "support/load.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::relay;
using namespace rollring::test;

namespace {

constexpr std::uint32_t ring_lanes = 4;
constexpr std::uint64_t streams = 3;

// Of a carrier, in this process or a child.
struct Ends {
    Outbox outbox;
    std::unique_ptr<Inbox> inbox;
};

std::uint64_t id_of(const TestRing& ring) {
    const auto stat = stat_ring(ring.name());
    require(stat.has_value(), "ring {} is gone", ring.name());
    return stat->ring_id;
}

class World {
  public:
    [[nodiscard]] Ends open() {
        auto outbox = Outbox::open(from.name(), {});
        require(outbox.has_value(), "no outbox: {}", outbox ? "" : outbox.error().to_string());
        auto inbox = open_inbox(id_of(to));
        require(inbox.has_value(), "no lane: {}", inbox ? "" : inbox.error().to_string());
        return {std::move(*outbox), std::move(*inbox)};
    }
    [[nodiscard]] Result<std::unique_ptr<Inbox>> open_inbox(std::uint64_t ring_id) {
        const std::span bytes(static_cast<std::byte*>(memory_.data()), Carried::bytes(ring_lanes));
        return Inbox::open(to.name(), {.name = "carrier", .keep_for = from.name()},
                           Carried(bytes, id_of(from), ring_id, ring_lanes));
    }

    const TestRing from;
    const TestRing to;

  private:
    SharedBytes memory_{Carried::bytes(ring_lanes)};
};

// Until it is killed: parcels of at least `bytes` bytes.
int carry(World& world, std::uint64_t bytes) {
    Ends ends = world.open();
    std::deque<std::size_t> under_way;  // records of parcels, the oldest first
    std::set<std::uint64_t> arrived;
    std::uint64_t oldest = 0;
    for (std::uint64_t next = 0;;) {
        Parcel parcel;
        static_cast<void>(ends.outbox.collect(parcel, bytes, 0, Deadline::after_ms(1)));
        if (!parcel.entries.empty()) {
            under_way.push_back(parcel.entries.size());
            require(ends.inbox->give(next++, parcel.entries, parcel.spans, 0).empty(), "refused");
        }
        for (const std::uint64_t number : ends.inbox->step(Deadline::now()).sent) {
            arrived.insert(number);
        }
        for (; arrived.erase(oldest) != 0; oldest++) {
            ends.outbox.release(under_way.front());
            under_way.pop_front();
        }
    }
}

// The records of each stream that the trainer's side has got.
class Taken {
  public:
    explicit Taken(Consumer consumer) : consumer_(std::move(consumer)) {}

    void take(std::uint64_t records) {
        Record record;
        for (; records != 0; records--) {
            REQUIRE(consumer_.wait(record, patience()) == Poll::record);
            Load::verify(record);
            const std::uint64_t stream = Load::stream_of(record);
            REQUIRE(stream < streams);
            REQUIRE(Load::number_of(record) == next_[stream]++);
            REQUIRE(consumer_.release(record.ref));
        }
    }
    [[nodiscard]] bool comes_more() {
        Record record;
        return consumer_.wait(record, Deadline::after_ms(200)) == Poll::record;
    }

  private:
    Consumer consumer_;
    std::array<std::uint64_t, streams> next_{};
};

}  // namespace

TEST_CASE("relay: a carrier is killed at any moment, and each record arrives once") {
    constexpr std::uint64_t rounds = 60;
    constexpr std::uint64_t each = 20;
    World world;
    std::vector<Producer> producers;
    producers.reserve(streams);
    for (std::uint64_t i = 0; i < streams; i++) producers.push_back(world.from.producer());
    Taken taken(world.to.consumer());
    Load load;
    std::mt19937_64 random(11);
    for (std::uint64_t round = 0; round < rounds; round++) {
        for (std::uint64_t number = round * each; number < (round + 1) * each; number++) {
            for (std::uint64_t stream = 0; stream < streams; stream++) {
                REQUIRE(load.push(producers[stream], stream, number) == Push::ok);
            }
        }
        const std::uint64_t bytes = random() % 2 == 0 ? 1 : 1 << 16;
        const std::uint64_t before = random() % (streams * each + 1);
        const pid_t first = start_child([&] { return carry(world, bytes); });
        taken.take(before);
        REQUIRE(kill_and_collect(first));
        const pid_t second = start_child([&] { return carry(world, bytes); });
        taken.take(streams * each - before);
        REQUIRE(kill_and_collect(second));
    }
    const pid_t last = start_child([&] { return carry(world, 1); });
    CHECK_FALSE(taken.comes_more());
    CHECK(kill_and_collect(last));
}

TEST_CASE("relay: a ring that was made again gets nothing of what was meant for the one before") {
    World world;
    const std::uint64_t before = id_of(world.to);
    REQUIRE(remove_ring(world.to.name(), true).has_value());
    REQUIRE(create_ring(world.to.name(), {.lanes = ring_lanes, .lane_bytes = 1 << 20}).has_value());
    const auto inbox = world.open_inbox(before);
    REQUIRE_FALSE(inbox.has_value());
    CHECK(inbox.error().code == Errc::closed);
    CHECK(inbox.error().message.find("made again") != std::string::npos);
    CHECK(world.open_inbox(id_of(world.to)).has_value());
}

TEST_CASE("relay: records of a lane that follow each other are one span") {
    World world;
    Producer producer = world.from.producer();
    for (std::uint32_t i = 0; i < 10; i++) {
        REQUIRE(send(producer, {.repetition = i}) == Push::ok);
    }
    Ends ends = world.open();
    Parcel parcel;
    REQUIRE(ends.outbox.collect(parcel, 1 << 20, 0, patience()) == Poll::record);
    CHECK(parcel.entries.size() == 10);
    CHECK(parcel.spans.size() == 1);
    CHECK(ends.outbox.collect(parcel, 1, 0, Deadline::after_ms(1)) == Poll::timed_out);
}

TEST_CASE("relay: a parcel whose index names memory that it lacks is refused, and harms nothing") {
    World world;
    Producer producer = world.from.producer();
    REQUIRE(send(producer) == Push::ok);
    Ends ends = world.open();
    Parcel parcel;
    REQUIRE(ends.outbox.collect(parcel, 1, 0, patience()) == Poll::record);
    std::vector<ParcelEntry> wrong(6, parcel.entries.front());
    wrong[0].span = 1;
    wrong[1].lane = ring_lanes;
    wrong[2].offset = 1;
    wrong[3].bytes = parcel.spans.front().size() + 1;
    wrong[4].offset = ~std::uint64_t{63};
    wrong[5].bytes = ~std::uint64_t{0};
    for (const ParcelEntry& one : wrong) {
        CHECK_FALSE(ends.inbox->give(0, {one}, parcel.spans, 0).empty());
    }
    REQUIRE(ends.inbox->give(1, parcel.entries, parcel.spans, 0).empty());
    CHECK(ends.inbox->step(patience()).sent == std::vector<std::uint64_t>{1});
    CHECK(ends.inbox->stats().records == 1);
}

TEST_CASE("relay: what lies anywhere arrives, what is damaged is counted, what came is passed") {
    World world;
    Producer producer = world.from.producer();
    for (std::uint32_t i = 0; i < 2; i++) REQUIRE(send(producer, {.repetition = i}) == Push::ok);
    Ends ends = world.open();
    Parcel parcel;
    REQUIRE(ends.outbox.collect(parcel, 1 << 20, 0, patience()) == Poll::record);
    const auto span = parcel.spans.front();
    std::vector<std::byte> moved(span.size() + 8);
    std::ranges::copy(span, moved.begin() + 8);
    std::vector<std::byte> damaged(span.begin(), span.end());
    damaged.front() ^= std::byte{255};
    std::uint64_t number = 0;
    const auto give = [&](std::span<const std::byte> memory) {
        REQUIRE(ends.inbox->give(number, parcel.entries, {memory}, 0).empty());
        REQUIRE(ends.inbox->step(patience()).sent == std::vector{number});
        number++;
        return ends.inbox->stats();
    };
    const InboxStats first = give(damaged);
    CHECK(first.records == 1);  // the one that is whole
    CHECK(first.refused == 1);
    const InboxStats second = give(std::span(moved).subspan(8));
    CHECK(second.records == 1);
    CHECK(second.repeated == 2);  // the damaged one lies before one that has arrived
    CHECK(second.waiting == 0);
}
