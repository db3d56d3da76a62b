// The lane as threads on one mapping, for ThreadSanitizer, which cannot see across mappings: one
// producer thread a lane, one consumer that releases out of order, both asleep when there is
// nothing to do.
//
//   threads [--records N] [--seed N]

#include <fmt/core.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "ring_map.hpp"
#include "support/load.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::size_t lanes = 4;
constexpr std::uint64_t lane_capacity = 32 << 10;
constexpr std::uint64_t soft_capacity = 8 << 10;
constexpr std::size_t held_max = 24;

struct alignas(line_bytes) Line {
    std::byte bytes[line_bytes];
};

// A segment's words of one lane, on the heap. Each word as far from the others as there.
struct Lane {
    alignas(line_bytes) std::atomic<std::uint64_t> tail{};
    alignas(line_bytes) std::atomic<std::uint64_t> head{};
    alignas(line_bytes) std::atomic<std::uint64_t> cursor{};
    alignas(line_bytes) Bell bell{};
    std::atomic<std::uint64_t> bits[lane_capacity / line_bytes / 64]{};
    Line data[lane_capacity / line_bytes]{};

    NativePlatform::Frames frames() { return {reinterpret_cast<std::byte*>(data)}; }
};

struct Ring {
    Lane lane[lanes];
    Bell bell{};
};

std::uint64_t payload_of(std::uint64_t lane, std::uint64_t number) {
    return 8 + mix(mix(lane) ^ number) % 200 * 8;
}
std::uint64_t word_of(std::uint64_t lane, std::uint64_t number, std::uint64_t index) {
    return mix(lane << 48 ^ number) + index;
}

// Sends `count` records; shows them one by one, or some at a time.
std::uint64_t produce(Ring& ring, std::uint64_t index, std::uint64_t count) {
    Lane& lane = ring.lane[index];
    NativeWriter writer(lane.tail, lane.head, lane.frames(), lane_capacity, soft_capacity);
    NativeBell bell = bell_of(lane.bell);
    std::uint64_t sleeps = 0;
    for (std::uint64_t number = 0; number < count; number++) {
        const std::uint64_t payload = payload_of(index, number);
        const std::uint64_t bytes = round_up(line_bytes + payload, line_bytes);
        for (;;) {
            Reserve found = writer.reserve(bytes);
            if (found == Reserve::full) {
                ring_bell(ring.bell);
                const std::uint32_t seen = bell.prepare();
                found = writer.reserve(bytes);
                if (found == Reserve::full) {
                    futex_sleep(lane.bell.sequence, seen, patience());
                    sleeps++;
                }
                bell.cancel();
            }
            if (found == Reserve::ok) break;
            require(found == Reserve::full, "lane {}: reserve says {}", index,
                    static_cast<int>(found));
        }
        std::byte* to = lane.frames().data + writer.offset() + line_bytes;
        for (std::uint64_t i = 0; i < payload / 8; i++) {
            const std::uint64_t word = word_of(index, number, i);
            std::memcpy(to + i * 8, &word, sizeof word);
        }
        Frame frame{};
        frame.bytes = bytes;
        frame.payload_bytes = payload;
        frame.sequence = number;
        writer.commit(frame);
        if (number % 7 < 3 || number + 1 == count) {
            writer.show();
            ring_bell(ring.bell);
        }
    }
    return sleeps;
}

class Reader {
  public:
    Reader(Ring& ring, std::uint64_t seed) : ring_(ring), dice_{seed} {
        for (Lane& lane : ring.lane) {
            readers_.emplace_back(lane.tail, lane.head, lane.cursor, lane.bits, lane.frames(),
                                  lane_capacity);
            require(readers_.back().recover(), "a fresh lane cannot be recovered");
        }
    }

    void consume(std::uint64_t count) {
        NativeBell bell = bell_of(ring_.bell);
        while (records_ < count) {
            if (turn()) continue;
            const std::uint32_t seen = bell.prepare();
            if (!turn()) {
                futex_sleep(ring_.bell.sequence, seen, patience());
                sleeps_++;
            }
            bell.cancel();
        }
        while (!held_.empty()) give_back();
        for (std::size_t i = 0; i < lanes; i++) {
            require(readers_[i].drained() && readers_[i].held_bytes() == 0, "lane {} is not empty",
                    i);
        }
    }
    [[nodiscard]] std::uint64_t sleeps() const { return sleeps_; }

  private:
    struct Held {
        std::size_t lane;
        Span span;
    };

    // Looks at every lane once. False if there was nothing to read and nothing to give back.
    bool turn() {
        bool busy = false;
        for (std::size_t i = 0; i < lanes; i++) {
            const std::uint64_t head = readers_[i].head();
            Frame frame{};
            const LanePoll got = readers_[i].poll(frame);
            require(got == LanePoll::record || got == LanePoll::empty, "lane {}: poll says {}", i,
                    static_cast<int>(got));
            if (readers_[i].head() != head) ring_bell(ring_.lane[i].bell);
            if (got == LanePoll::record) take(i, frame);
            busy |= got == LanePoll::record;
        }
        while (held_.size() > held_max) give_back();
        if (busy || held_.empty()) return busy;
        give_back();
        return true;
    }

    void take(std::size_t lane, const Frame& frame) {
        const std::uint64_t number = next_[lane]++;
        require(frame.sequence == number && frame.payload_bytes == payload_of(lane, number),
                "lane {}: record {} where {} was due", lane, frame.sequence, number);
        const std::byte* from =
            ring_.lane[lane].frames().data + frame.position % lane_capacity + line_bytes;
        for (std::uint64_t i = 0; i < frame.payload_bytes / 8; i++) {
            std::uint64_t word;
            std::memcpy(&word, from + i * 8, sizeof word);
            require(word == word_of(lane, number, i), "lane {}: record {} is torn", lane, number);
        }
        held_.push_back({lane, {frame.position, frame.bytes}});
        records_++;
    }

    void give_back() {
        std::swap(held_[dice_.below(held_.size())], held_.back());
        const Held one = held_.back();
        held_.pop_back();
        readers_[one.lane].release(one.span);
        ring_bell(ring_.lane[one.lane].bell);
    }

    Ring& ring_;
    Dice dice_;
    std::vector<NativeReader> readers_;
    std::vector<Held> held_;
    std::uint64_t next_[lanes]{};
    std::uint64_t records_ = 0;
    std::uint64_t sleeps_ = 0;
};

void run(std::uint64_t seed, std::uint64_t records) {
    const auto ring = std::make_unique<Ring>();
    std::uint64_t sleeps[lanes]{};
    std::vector<std::jthread> producers;
    producers.reserve(lanes);
    for (std::size_t i = 0; i < lanes; i++) {
        producers.emplace_back([&, i] { sleeps[i] = produce(*ring, i, records / lanes); });
    }
    Reader reader(*ring, seed);
    reader.consume(records / lanes * lanes);
    producers.clear();
    std::uint64_t slept = 0;
    for (const std::uint64_t one : sleeps) slept += one;
    fmt::print("threads: records={} producer_sleeps={} consumer_sleeps={}\n",
               records / lanes * lanes, slept, reader.sleeps());
    require(slept + reader.sleeps() > 0, "nobody ever slept: the bells were not tried");
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    const std::uint64_t records = option(arguments, "--records", 1'000'000);
    fmt::print("threads --seed {} --records {}\n", seed, records);
    static_cast<void>(std::fflush(stdout));
    try {
        run(seed, records);
    } catch (const std::exception& failure) {
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        std::_Exit(1);  // threads may still be at work
    }
    return 0;
}
