// The large cases: 64 producers at once, a record of 512 MiB, a lane of 8 GiB, a million records.
//
//   scale producers|record|lane

#include <cstdio>
#include <map>
#include <numeric>

#include "support/arrivals.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr int skipped = 77;
constexpr std::uint64_t gib = std::uint64_t{1} << 30;
constexpr std::uint16_t experts = static_cast<std::uint16_t>(Std::routed_experts);

bool room_for(std::uint64_t bytes) {
    const std::uint64_t free_bytes = shared_memory_space().free_bytes;
    if (free_bytes > bytes + gib) return true;
    fmt::print("skipped: needs {} MiB of /dev/shm, {} are free\n", bytes >> 20, free_bytes >> 20);
    return false;
}

int many_producers() {
    constexpr std::size_t count = 64;
    constexpr std::uint64_t each = 3000;
    const ScratchRing ring("many", {.lanes = count, .lane_bytes = 256 << 10});
    Dice dice{1};
    Arrivals arrivals(ring.name(), dice);
    for (std::size_t i = 0; i < count; i++) arrivals.start({}, each);
    const Deadline deadline = Deadline::after_ms(300'000);
    while (arrivals.records() < count * each) {
        require(!deadline.passed(), "{} records after 300 s", arrivals.records());
        arrivals.turn();
    }
    for (std::size_t i = 0; i < count; i++) {
        require(collect(arrivals.seen(i).pid) == 0, "producer {} failed", i);
        arrivals.collected(i);
    }
    arrivals.finish();
    fmt::print("producers={} records={}\n", arrivals.joined(), arrivals.records());
    require(arrivals.joined() == count, "{} joined", arrivals.joined());
    return 0;
}

// routed_experts [n, 64, 8] of u8 with a value of its own in every place that is looked at.
Draft large_draft(std::uint32_t n_tokens) {
    Draft draft("large");
    draft.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {n_tokens}, 1, nullptr});
    draft.add({experts, dtype_u8, {n_tokens, 64, 8, 0}, 3, nullptr});
    return draft;
}

int large_record() {
    if (!room_for(gib + gib / 64)) return skipped;
    const ScratchRing ring("record", {.lanes = 1, .lane_bytes = gib});
    auto producer = Producer::open(ring.name(), {.checksum = Checksum::xxh3});
    auto consumer = Consumer::open(ring.name());
    require(producer.has_value() && consumer.has_value(), "open");
    const std::uint32_t n_tokens = 512 * 1024 * 1024 / (64 * 8 + 4) + 1;
    for (std::uint64_t round = 0; round < 3; round++) {  // the lane's end comes in the second
        Reservation room;
        Push push = producer->reserve(large_draft(n_tokens), Deadline::now(), room);
        if (push == Push::timed_out) {  // the consumer must first pass the skip
            Record nothing;
            require(consumer->poll(nothing) == Poll::empty, "a record from nowhere");
            push = producer->reserve(large_draft(n_tokens), Deadline::now(), room);
        }
        require(push == Push::ok, "{}: {}", name(push), producer->problem());
        const auto ids = room.values<std::int32_t>(Std::token_ids);
        std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(round));
        const auto words = room.bytes(experts, dtype_u8);
        for (std::uint64_t i = 0; i < words.size(); i++) {
            words[i] = static_cast<std::byte>(i * 7 + round + (i >> 16));
        }
        require(room.commit() == Push::ok, "its commit");
        Record record;
        require(consumer->poll(record) == Poll::record, "it does not arrive");
        require(record.ref.bytes() > gib / 2, "it has {} bytes", record.ref.bytes());
        std::uint64_t wrong = 0;
        const auto got = record.view.values<std::uint8_t>(Std::routed_experts);
        for (std::uint64_t i = 0; i < got.size(); i++) {
            wrong += got[i] != static_cast<std::uint8_t>(i * 7 + round + (i >> 16)) ? 1 : 0;
        }
        require(got.size() == words.size() && wrong == 0, "{} wrong bytes", wrong);
        require(record.view.token_ids()[n_tokens - 1] ==
                    static_cast<std::int32_t>(n_tokens - 1 + round),
                "the last token");
        consumer->release(record.ref);
    }
    Reservation none;
    const auto too_large = producer->reserve(large_draft(2 * n_tokens), Deadline::now(), none);
    require(too_large == Push::too_large, "1 GiB in a lane of 1 GiB: {}", name(too_large));
    fmt::print("record_bytes={} rounds=3\n", std::uint64_t{n_tokens} * (64 * 8 + 4));
    return 0;
}

// Ten records of 0.75 GiB, of which only the ends are written, carry the positions past 2^32.
std::uint64_t send_large(Producer& producer) {
    const std::uint32_t n_tokens = 3 * (gib / 4) / (64 * 8 + 4);
    std::uint64_t bytes = 0;
    for (std::int32_t i = 0; i < 10; i++) {
        Reservation room;
        const Push push = producer.reserve(large_draft(n_tokens), Deadline::now(), room);
        require(push == Push::ok, "large record {}: {}", i, producer.problem());
        room.values<std::int32_t>(Std::token_ids).back() = i;
        bytes += room.bytes(experts, dtype_u8).size();
        require(room.commit() == Push::ok, "its commit");
    }
    return bytes;
}

int large_lane() {
    constexpr std::uint64_t lane_bytes = 8 * gib;
    constexpr std::uint64_t count = 1'000'000;
    if (!room_for(lane_bytes + lane_bytes / 512)) return skipped;
    const ScratchRing ring("lane", {.lanes = 1, .lane_bytes = lane_bytes});
    auto producer = Producer::open(ring.name());
    auto consumer = Consumer::open(ring.name());
    require(producer.has_value() && consumer.has_value(), "open");
    const std::uint64_t large_bytes = send_large(*producer);
    require(large_bytes > 7 * gib, "{} bytes", large_bytes);
    Record record;
    std::vector<RecordRef> held;
    for (std::int32_t i = 0; i < 10; i++) {
        require(consumer->poll(record) == Poll::record, "large record {}", i);
        require(record.view.token_ids().back() == i, "large record {}", i);
        held.push_back(record.ref);
    }
    require(held.back().position > std::uint64_t{1} << 32, "position {}", held.back().position);
    for (const RecordRef& ref : held) consumer->release(ref);
    std::vector<std::int32_t> tokens(64);
    Draft draft("short");
    for (std::uint64_t i = 0; i < count; i++) {
        std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(i));
        draft.meta.repetition_id = static_cast<std::uint32_t>(i);
        draft.set(Std::token_ids, tokens);
        const Push push = producer->push_later(draft, Deadline::now());
        require(push == Push::ok, "record {}: {}", i, producer->problem());
        if (i % 100 == 99) producer->flush();
    }
    for (std::uint64_t i = 0; i < count; i++) {
        require(consumer->poll(record) == Poll::record, "record {} of {}", i, count);
        require(record.view.meta().repetition_id == i && record.view.n_tokens() == 64 &&
                    record.view.token_ids()[63] == static_cast<std::int32_t>(i + 63),
                "record {}", i);
        consumer->release(record.ref);
    }
    require(consumer->poll(record) == Poll::empty, "one too many");
    const ConsumerStats stats = consumer->stats();
    require(stats.lost + stats.duplicates + stats.torn == 0, "lost {}", stats.lost);
    fmt::print("lane_bytes={} records={} positions up to {}\n", lane_bytes, stats.records,
               record.ref.position);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::map<std::string, int (*)()> cases = {
        {"producers", many_producers}, {"record", large_record}, {"lane", large_lane}};
    try {
        if (!arguments.empty() && arguments[0] == "--producer") {
            die_with_parent();
            return producer_role({arguments.begin() + 1, arguments.end()});
        }
        return cases.at(arguments.at(0))();
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        return 1;
    }
}
