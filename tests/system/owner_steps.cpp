// A producer is killed at every store into its lane's owner page, one after another, found by
// single steps (ptrace): in open(), close() and push(). Its successors and neighbors must then find
// the state that the options promise.
//
//   keep_for      a death between any two stores of open() or close() leaves the lane to the
//                 successor with the same words, which learns what was sent
//   max_records   a death between any two stores of push() neither loses nor makes a place

#include <unistd.h>

#include <span>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "support/in_child.hpp"
#include "support/kill_at_store.hpp"

using namespace rollring;
using rollring::test::collect;
using rollring::test::kill_at_store;
using rollring::test::patience;
using rollring::test::require;
using rollring::test::ScratchRing;
using rollring::test::start_child;
using rollring::test::start_stepped;

namespace {

constexpr std::uint64_t most = 4;
const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
const ProducerOptions kept{
    .name = "kept", .attach_timeout = std::chrono::seconds(60), .keep_for = "words"};
const ProducerOptions at_once{.name = "other", .attach_timeout = std::chrono::nanoseconds(0)};
const ProducerOptions bounded{.name = "bounded", .max_records = most};

Draft draft(std::uint64_t visit) {
    Draft made("prompt");
    made.meta.visit = static_cast<std::uint32_t>(visit);
    made.set(Std::token_ids, tokens);
    return made;
}

Producer opened(const std::string& ring, const ProducerOptions& options) {
    auto made = Producer::open(ring, options);
    require(made.has_value(), "{}", made ? "" : made.error().to_string());
    return std::move(*made);
}

std::span<const std::byte> page(const LaneOwner& owner) {
    return std::as_bytes(std::span(&owner, 1));
}

std::vector<RecordRef> read_all(Consumer& consumer) {
    std::vector<RecordRef> found;
    Record record;
    while (consumer.wait(record, Deadline::after_ms(30)) == Poll::record) {
        found.push_back(record.ref);
    }
    return found;
}

void drain(Consumer& consumer) {
    for (const RecordRef& record : read_all(consumer)) consumer.release(record);
}

// The records that a kept lane's first producer has left: one that was shown, and one that was not.
struct Left {
    std::uint32_t lane;
    std::uint64_t sent;
    std::uint64_t unsent;
};

Left leave_kept_lane(const std::string& ring) {
    int ends[2];
    require(pipe(ends) == 0, "pipe");
    const pid_t child = start_child([&] {
        Producer first = opened(ring, kept);
        if (first.push(draft(1), patience()) != Push::ok) return 1;
        Left left{first.lane(), first.last().position, 0};
        if (first.push_later(draft(2), patience()) != Push::ok) return 1;
        left.unsent = first.last().position;
        if (write(ends[1], &left, sizeof left) != sizeof left) return 1;
        return raise(SIGKILL);
    });
    Left left{};
    require(read(ends[0], &left, sizeof left) == sizeof left, "the first producer sends");
    static_cast<void>(collect(child));
    close(ends[0]);
    close(ends[1]);
    return left;
}

void check_kept(const ScratchRing& ring, Consumer& consumer, const Left& left, int at) {
    drain(consumer);
    {
        const auto stranger = Producer::open(ring.name(), at_once);
        require(!stranger || stranger->lane() != left.lane,
                "store {}: a stranger has the lane that is kept", at);
    }
    drain(consumer);
    const Producer third = opened(ring.name(), kept);
    require(third.lane() == left.lane, "store {}: the successor has lane {} and not {}", at,
            third.lane(), left.lane);
    const std::uint64_t last = third.last().position;
    require(left.sent < last && last <= left.unsent,
            "store {}: the successor learns {}, between {} and {} would be right", at, last,
            left.sent, left.unsent);
}

bool open_killed_at(int at) {
    const ScratchRing ring("steps", {.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = std::move(*Consumer::open(ring.name()));
    const Left left = leave_kept_lane(ring.name());
    drain(consumer);
    const auto map = RingMap::attach(ring.name(), patience());
    const pid_t second = start_stepped([&] {
        static_cast<void>(raise(SIGSTOP));
        const Producer successor = opened(ring.name(), kept);
        return raise(SIGSTOP);  // before it closes, and lets the lane go
    });
    if (!kill_at_store(second, page(map->owner(left.lane)), at, [&] { drain(consumer); }))
        return false;
    check_kept(ring, consumer, left, at);
    return true;
}

bool close_killed_at(int at) {
    const ScratchRing ring("steps", {.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = std::move(*Consumer::open(ring.name()));
    const Left left = leave_kept_lane(ring.name());
    drain(consumer);
    const auto map = RingMap::attach(ring.name(), patience());
    const LaneOwner& owner = map->owner(left.lane);
    const pid_t second = start_stepped([&] {
        Producer closes = opened(ring.name(), kept);
        static_cast<void>(raise(SIGSTOP));
        closes.close();
        return 0;
    });
    if (!kill_at_store(second, page(owner), at, [&] { drain(consumer); })) return false;
    // It has closed, and the lane is anybody's, or it died, and the lane is kept.
    const bool closed = observe(owner.state) == static_cast<std::uint32_t>(OwnerState::closed);
    if (!closed) check_kept(ring, consumer, left, at);
    drain(consumer);
    if (closed) {
        Producer one = opened(ring.name(), at_once);
        Producer two = opened(ring.name(), at_once);  // both lanes can be had
    }
    return true;
}

// Another producer counts the records that are there after the death. Nothing is released
// meanwhile.
bool push_killed_at(int at) {
    const ScratchRing ring("steps", {.lanes = 3, .lane_bytes = 64 << 10});
    auto consumer = std::move(*Consumer::open(ring.name()));
    const auto map = RingMap::attach(ring.name(), patience());
    const pid_t pid = start_stepped([&] {
        Producer producer = opened(ring.name(), bounded);
        if (producer.push(draft(0), patience()) != Push::ok) return 1;
        static_cast<void>(raise(SIGSTOP));
        static_cast<void>(producer.push(draft(1), patience()));
        return 0;
    });
    if (!kill_at_store(pid, page(map->owner(0)), at, [] {})) return false;
    std::size_t there = read_all(consumer).size();
    require(there == 1 || there == 2, "store {}: {} records of two were read", at, there);
    // The second generation takes the dead one's lane, or another one; neither forgets.
    for (int generation = 0; generation < 2; generation++) {
        Producer next = opened(ring.name(), bounded);
        std::uint64_t pushed = 0;
        while (next.push(draft(2), Deadline::now()) == Push::ok) pushed++;
        there += pushed;
        require(there == most, "store {}, generation {}: {} records are there, the bound is {}", at,
                generation, there, most);
        next.close();
        require(read_all(consumer).size() == pushed, "what was pushed is read");
    }
    return true;
}

int run() {
    struct Case {
        const char* name;
        bool (*killed_at)(int);
    };
    for (const Case& one : {Case{"open", open_killed_at}, Case{"close", close_killed_at},
                            Case{"push", push_killed_at}}) {
        int stores = 0;
        while (one.killed_at(stores + 1)) stores++;
        fmt::print("{}: killed at each of {} stores\n", one.name, stores);
        require(stores >= 2, "the steps find the stores of {}", one.name);
    }
    return 0;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const test::Failure& failure) {
        fmt::print(stderr, "{}\n", failure.what());
        return 1;
    }
}
