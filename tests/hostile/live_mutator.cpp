// A producer gone wild scribbles over its own lane, its owner page, the bells and the header, while
// a consumer attaches and polls: never a signal, a hang or a loss in the other lane; and once the
// wild one is gone, its lane works again.
//
//   live_mutator [--rings N] [--polls-each N] [--seed N]

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "ring_map.hpp"
#include "support/arrivals.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t capacity = 64 << 10;

struct Scribbles {
    std::atomic<std::uint64_t> count;
    std::atomic<std::uint32_t> go;  // the consumer has seen a record of the wild one
    std::atomic<std::uint32_t> header_too;
};

// FD RING SEED: holds a lane, sends now and then, and writes rubbish until killed.
int wild_role(const std::vector<std::string>& arguments) {
    const Shared<Scribbles> scribbles(arguments.at(1));
    auto producer = Producer::open(arguments.at(2), {.name = "wild"});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    const std::uint32_t lane = producer->lane();
    const auto segment = Segment::attach(arguments.at(2), patience());
    const Geometry& geometry = segment->geometry();
    const auto all = segment->map(0, geometry.segment_bytes(), true);
    std::byte* const base = all->data();
    auto& owner = *reinterpret_cast<LaneOwner*>(base + geometry.owner_offset(lane));
    Dice dice{std::stoull(arguments.at(3))};
    Load load;
    const auto scribble = [&](std::uint64_t offset, std::uint64_t bytes) {
        const std::uint64_t word = dice.next();
        const std::uint64_t at = dice.below(bytes / 4) * 4;
        std::memcpy(base + offset + at, &word, dice.below(2) == 0 ? 1 : 4);
    };
    require(load.push(*producer, 7, 0) == Push::ok, "push");
    while (scribbles->go.load() == 0) std::this_thread::yield();
    for (std::uint64_t number = 1;; number++) {
        switch (dice.below(40)) {
            default:
                static_cast<void>(producer->push(load.draft(7, number), Deadline::now()));
                break;
            case 1:
                scribble(geometry.data_offset(lane), capacity);
                break;
            case 2:  // where the frames are
                scribble(geometry.data_offset(lane) + owner.tail.load() % capacity / 64 * 64, 64);
                break;
            case 3:
                scribble(geometry.owner_offset(lane), sizeof(LaneOwner));
                break;
            case 4:
                scribble(geometry.bells_offset(), sizeof(Bell) * 3);
                break;
            case 5:
                owner.tail += dice.below(4) * 64;
                break;
            case 6:
                if (scribbles->header_too.load() != 0) scribble(0, 2 * page_bytes);
                break;
        }
        scribbles->count++;
    }
}

struct Watch {
    std::uint64_t good = 0;
    std::uint64_t wild = 0;
    std::uint64_t attaches = 0;
    std::uint64_t polls = 0;
    std::uint64_t refused = 0;
    std::uint64_t quarantines = 0;
    std::uint64_t dropped_bytes = 0;
};

// So much rubbish is to be written while we look.
constexpr std::uint64_t scribbles_each = 2000;

// Polls until `records` of the good producer (stream 0) have come; reads all of every wild one.
void consume(Consumer& consumer, Watch& watch, std::uint64_t records, std::uint64_t& due,
             Scribbles* scribbles = nullptr) {
    const std::uint64_t scribbled =
        scribbles != nullptr ? scribbles->count.load() + scribbles_each : 0;
    const auto more_rubbish = [&] {
        return scribbles != nullptr && scribbles->count.load() < scribbled;
    };
    std::uint64_t sum = 0;
    const Deadline deadline = patience();
    for (const std::uint64_t until = watch.good + records; watch.good < until || more_rubbish();) {
        require(!deadline.passed(), "the good lane stands still");
        Record record;
        // Most looks do not wait: the more of them, the more rubbish is met half written.
        const bool waits = watch.polls++ % 1024 == 0;
        const Poll got =
            waits ? consumer.wait(record, Deadline::after_ms(1)) : consumer.poll(record);
        if (got != Poll::record) continue;
        if (record.ref.lane == 0) {
            Load::verify(record);
            require(Load::number_of(record) == due, "record {} instead of {}",
                    Load::number_of(record), due);
            due++;
            watch.good++;
        } else {
            sum += record.view.digest(consumer.schema());
            watch.wild++;
            if (scribbles != nullptr) scribbles->go = 1;
        }
        consumer.release(record.ref);
        Event event;
        while (consumer.next_event(event)) {
            require(event.lane != 0 || event.kind == Event::Kind::producer_joined, "lane 0: {}",
                    name(event.kind));
        }
    }
    require(sum != 1, "the digests were not read");
    watch.quarantines += consumer.stats().quarantines;
    watch.dropped_bytes += consumer.stats().dropped_bytes;
}

// The wild one's lane takes producers again; those that it has left a wrong tail for may fail.
std::uint64_t check_lane_comes_back(const std::string& ring) {
    auto consumer = Consumer::open(ring);
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Load load;
    for (std::uint64_t tries = 1; tries <= 3; tries++) {
        auto next = Producer::open(ring, {.attach_timeout = {}});
        Record record;
        for (const Deadline deadline = patience(); !next && !deadline.passed();) {
            if (consumer->poll(record) == Poll::record) consumer->release(record.ref);
            next = Producer::open(ring, {.attach_timeout = {}});
        }
        require(next.has_value(), "{}", next ? "" : next.error().to_string());
        if (load.push(*next, 9, 0) != Push::ok) continue;
        for (const Deadline deadline = Deadline::after_ms(2'000); !deadline.passed();) {
            if (consumer->poll(record) != Poll::record) {
                if (consumer->stats().quarantines >= tries) break;
                continue;
            }
            consumer->release(record.ref);
            if (record.ref.lane != next->lane() || Load::stream_of(record) != 9) continue;
            Load::verify(record);
            return tries;
        }
    }
    throw Failure("the lane of the wild producer does not come back");
}

void one_ring(Dice& dice, Watch& watch, std::uint64_t& scribbled, std::uint64_t records,
              std::uint64_t attaches) {
    const ScratchRing ring("wild", {.lanes = 2, .lane_bytes = capacity, .soft_bytes = 16384});
    const Shared<Lives> lives;
    const Shared<Scribbles> scribbles;
    std::uint64_t due = 0;
    auto consumer = Consumer::open(ring.name());
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    const pid_t good = start_self({"--producer", lives.fd(), ring.name(), "0", "0"});
    consume(*consumer, watch, 1, due);  // it has lane 0
    const pid_t wild =
        start_self({"--wild", scribbles.fd(), ring.name(), std::to_string(dice.next())});
    for (int i = 0; i < 4; i++) {
        consume(*consumer, watch, records / 4, due, scribbles.operator->());
        {
            const Consumer gone = std::move(*consumer);
        }
        consumer = Consumer::open(ring.name());
        watch.attaches++;
        require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    }
    // Now the header as well: each attach ends in a ring or in a named error.
    scribbles->header_too = 1;
    for (std::uint64_t i = 0; i < attaches; i++) {
        const auto stat = stat_ring(ring.name());
        static_cast<void>(diagnose_ring(ring.name()));
        watch.attaches++;
        watch.refused += stat ? 0 : 1;
    }
    consume(*consumer, watch, records / 4, due, scribbles.operator->());  // attached: goes on
    require(kill_and_collect(wild), "the wild producer ended by itself");
    require(kill_and_collect(good), "the good producer ended by itself");
    scribbled += scribbles->count.load();
}

// Without a damaged header: the lane comes back.
std::uint64_t recovery(Dice& dice, std::uint64_t records) {
    const ScratchRing ring("back", {.lanes = 2, .lane_bytes = capacity, .soft_bytes = 16384});
    const Shared<Lives> lives;
    const Shared<Scribbles> scribbles;
    Watch watch;
    std::uint64_t due = 0;
    const pid_t good = start_self({"--producer", lives.fd(), ring.name(), "0", "0"});
    {
        auto consumer = Consumer::open(ring.name());
        require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
        consume(*consumer, watch, 1, due);
        const pid_t wild =
            start_self({"--wild", scribbles.fd(), ring.name(), std::to_string(dice.next())});
        consume(*consumer, watch, records, due, scribbles.operator->());
        require(kill_and_collect(wild), "the wild producer ended by itself");
        consume(*consumer, watch, 50, due);
    }
    const std::uint64_t tries = check_lane_comes_back(ring.name());
    require(kill_and_collect(good), "the good producer ended by itself");
    return tries;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (!arguments.empty() && arguments[0] == "--producer") {
            die_with_parent();
            return producer_role({arguments.begin() + 1, arguments.end()});
        }
        if (!arguments.empty() && arguments[0] == "--wild") {
            die_with_parent();
            return wild_role(arguments);
        }
        const std::uint64_t seed =
            option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
        const std::uint64_t rings = option(arguments, "--rings", 300);
        const std::uint64_t polls_each = option(arguments, "--polls-each", 4'000);
        fmt::print("live_mutator --seed {} --rings {}\n", seed, rings);
        static_cast<void>(std::fflush(stdout));
        Dice dice{seed};
        Watch watch;
        std::uint64_t scribbled = 0;
        std::uint64_t tries = 0;
        for (std::uint64_t i = 0; i < rings; i++) {
            one_ring(dice, watch, scribbled, 400, 200);
            tries = std::max(tries, recovery(dice, 200));
        }
        fmt::print(
            "scribbles={} attaches={} polls={} refused={} good_records={} wild_records={} "
            "quarantines={} "
            "dropped_bytes={} most_tries_for_the_lane={} leftovers={}\n",
            scribbled, watch.attaches, watch.polls, watch.refused, watch.good, watch.wild,
            watch.quarantines, watch.dropped_bytes, tries, leftovers());
        require(scribbled >= rings * 1000, "only {} scribbles", scribbled);
        require(watch.attaches >= rings * 200, "only {} attaches", watch.attaches);
        require(watch.polls >= rings * polls_each, "only {} polls", watch.polls);
        require(watch.wild >= rings, "only {} records of wild producers", watch.wild);
        require(watch.quarantines >= rings / 20, "only {} quarantines", watch.quarantines);
        require(watch.refused >= rings * 10, "only {} attaches refused", watch.refused);
        require(leftovers() == 0, "{} leftovers", leftovers());
        return 0;
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED (process {}): {}\n", getpid(), failure.what());
        return 1;
    }
}
