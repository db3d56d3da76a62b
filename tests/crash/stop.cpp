// A stopped process is not a dead one: SIGSTOP in the middle of a write and of a release.

#include <csignal>
#include <memory>
#include <vector>

#include "random_kill.hpp"
#include "support/load.hpp"

namespace rollring::test {
namespace {

// A process of ours that goes on and ends with the test.
class Started {
  public:
    explicit Started(const std::vector<std::string>& arguments) : pid_(start_self(arguments)) {}
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;
    ~Started() { kill_and_collect(pid_); }
    [[nodiscard]] pid_t pid() const { return pid_; }
    void signal(int number) const { kill(pid_, number); }

  private:
    pid_t pid_;
};

struct Progress {
    std::atomic<std::uint64_t> released;
};

// Takes one record at a time off the ring, in order per stream, and releases it.
class Taker {
  public:
    explicit Taker(Consumer& consumer, std::size_t streams) : consumer_(consumer), next_(streams) {}

    void take_one() {
        Record record;
        require(consumer_.wait(record, patience()) == Poll::record, "nothing arrives");
        Load::verify(record);
        std::uint64_t& due = next_.at(Load::stream_of(record));
        require(Load::number_of(record) == due, "stream {}: record {} instead of {}",
                Load::stream_of(record), Load::number_of(record), due);
        due++;
        consumer_.release(record.ref);
        Event event;
        while (consumer_.next_event(event)) {
            require(event.kind == Event::Kind::producer_joined, "{} of {}", name(event.kind),
                    event.producer);
        }
    }
    void take_of(std::uint64_t stream, std::uint64_t count) {
        const std::uint64_t wanted = next_.at(stream) + count;
        while (next_.at(stream) < wanted) take_one();
    }
    [[nodiscard]] std::uint64_t taken(std::uint64_t stream) const { return next_.at(stream); }

  private:
    Consumer& consumer_;
    std::vector<std::uint64_t> next_;
};

// Stream 0 stops itself in the middle of each write; stream 1 never does.
void stop_in_write(std::uint64_t rounds) {
    const ScratchRing ring("stop-write", {.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = Consumer::open(ring.name());
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    const Started stopping({"--stopping-producer", ring.name(), "0", "stop"});
    const Started peer({"--stopping-producer", ring.name(), "1", "go"});
    Taker taker(*consumer, 2);
    for (std::uint64_t round = 0; round < rounds; round++) {
        await_stopped(stopping.pid());
        // More than a lap of the peer's, and long enough for every look at the living.
        const Deadline looks = Deadline::after_ms(60);
        for (int i = 0; i < 40 || !looks.passed(); i++) taker.take_of(1, 1);
        require(taker.taken(0) == round, "a record came out of a stopped write");
        require(state_of(stopping.pid()) == 'T', "the producer does not stand");
        const auto stat = stat_ring(ring.name());
        require(stat.has_value() && stat->lanes.size() == 2, "stat of a stopped producer");
        for (const LaneStat& lane : stat->lanes) {
            require(lane.alive && lane.state == LaneState::active, "lane {} is {}", lane.lane,
                    name(lane.state));
        }
        stopping.signal(SIGCONT);
        taker.take_of(0, 1);
    }
    const ConsumerStats stats = consumer->stats();
    require(stats.producers_died == 0 && stats.lost == 0 && stats.torn == 0, "a loss");
    fmt::print("stopped in a write: rounds={} records_of_peer={}\n", rounds, taker.taken(1));
}

// Many producers stand still in the middle of a write, for so long that any timeout would have
// called them dead; meanwhile their peer goes on. None is reaped, and each commits afterwards.
void stop_for_long(const std::vector<std::int64_t>& seconds) {
    constexpr std::uint32_t still = 10;
    const ScratchRing ring("stop-long", {.lanes = still + 1, .lane_bytes = 64 << 10});
    auto consumer = Consumer::open(ring.name());
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    std::vector<std::unique_ptr<Started>> producers;
    for (std::uint32_t i = 0; i <= still; i++) {
        producers.push_back(std::make_unique<Started>(std::vector<std::string>{
            "--stopping-producer", ring.name(), std::to_string(i), i < still ? "stop" : "go"}));
    }
    Taker taker(*consumer, still + 1);
    std::uint64_t round = 0;
    for (const std::int64_t one : seconds) {
        for (std::uint32_t i = 0; i < still; i++) await_stopped(producers[i]->pid());
        for (const Deadline end = Deadline::after_ms(one * 1000); !end.passed();) {
            taker.take_of(still, 1);
        }
        const auto stat = stat_ring(ring.name());
        require(stat.has_value() && stat->lanes.size() == still + 1, "stat of stopped producers");
        for (const LaneStat& lane : stat->lanes) {
            require(lane.alive && lane.state == LaneState::active, "lane {} is {}", lane.lane,
                    name(lane.state));
        }
        for (std::uint32_t i = 0; i < still; i++) {
            require(taker.taken(i) == round, "a record came out of a stopped write");
            producers[i]->signal(SIGCONT);
        }
        round++;
        for (std::uint32_t i = 0; i < still; i++) {
            while (taker.taken(i) < round) taker.take_one();
        }
    }
    const ConsumerStats stats = consumer->stats();
    require(stats.producers_died == 0 && stats.lost == 0 && stats.torn == 0, "a loss");
    fmt::print("stopped for long: runs={} longest_s={} records_of_peer={}\n", round * still,
               seconds.back(), taker.taken(still));
}

// The consumer is stopped wherever it is, most often in a release; the producer feels
// back-pressure.
void stop_in_release(std::uint64_t seed, std::uint64_t rounds) {
    const ScratchRing ring("stop-release", {.lanes = 1, .lane_bytes = 64 << 10});
    const Shared<Progress> progress;
    const Started consumer({"--stopping-consumer", progress.fd(), ring.name()});
    auto producer = Producer::open(ring.name(), {.checksum = Checksum::xxh3});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    Dice dice{seed};
    Load load;
    std::uint64_t sent = 0;
    const auto push = [&](Deadline deadline) {
        const Push got = producer->push(load.draft(0, sent), deadline);
        require(got == Push::ok || got == Push::timed_out, "push: {}: {}", name(got),
                producer->problem());
        sent += got == Push::ok ? 1 : 0;
        return got == Push::ok;
    };
    for (std::uint64_t round = 0; round < rounds; round++) {
        for (std::uint64_t i = 0; i < 200 + dice.below(50); i++) {
            require(push(patience()), "the consumer does not go on");
        }
        consumer.signal(SIGSTOP);
        await_stopped(consumer.pid());
        while (push(Deadline::now())) continue;  // until the lane is full
        require(!push(Deadline::after_ms(20)), "room came from a stopped consumer");
        require(producer->consumer_alive(), "the stopped consumer was taken for dead");
        const auto second =
            Consumer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(10)});
        require(!second.has_value() && second.error().code == Errc::busy,
                "a second consumer took the seat of a stopped one");
        require(state_of(consumer.pid()) == 'T', "the consumer does not stand");
        consumer.signal(SIGCONT);
        require(push(patience()), "the consumer does not go on");
    }
    const Deadline deadline = patience();
    while (progress->released.load() < sent) {
        require(!deadline.passed(), "{} of {} records released", progress->released.load(), sent);
    }
    fmt::print("stopped in a release: rounds={} records={}\n", rounds, sent);
}

}  // namespace

void stop_everyone(std::uint64_t seed, std::uint64_t rounds, bool long_too) {
    stop_in_write(rounds);
    if (long_too) stop_for_long({1, 5, 20});
    stop_in_release(seed, rounds);
}

// RING STREAM stop|go
int stopping_producer_role(const std::vector<std::string>& arguments) {
    const std::uint64_t stream = std::stoull(arguments.at(1));
    auto producer = Producer::open(arguments.at(0), {.checksum = Checksum::xxh3});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    Load load;
    for (std::uint64_t number = 0;; number++) {
        if (arguments.at(2) == "go") {
            require(load.push(*producer, stream, number) == Push::ok, "{}", producer->problem());
            continue;
        }
        Draft shape = Load::named(stream, number);
        const std::uint32_t count = Load::tokens(stream, number);
        shape.add(
            {static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {count, 0, 0, 0}, 1, nullptr});
        Reservation room;
        require(producer->reserve(shape, patience(), room) == Push::ok, "{}", producer->problem());
        const auto ids = room.values<std::int32_t>(Std::token_ids);
        Load::fill(ids.first(count / 2), stream, number);
        static_cast<void>(raise(SIGSTOP));
        Load::fill(ids, stream, number);
        require(room.commit() == Push::ok, "{}", producer->problem());
    }
}

// FD RING: releases out of order, two by two, and counts.
int stopping_consumer_role(const std::vector<std::string>& arguments) {
    const Shared<Progress> progress(arguments.at(0));
    auto consumer = Consumer::open(arguments.at(1));
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    std::vector<RecordRef> held;
    for (std::uint64_t due = 0;;) {
        Record record;
        const Poll got = consumer->wait(record, Deadline::after_ms(held.empty() ? 60'000 : 1));
        if (got == Poll::record) {
            Load::verify(record);
            require(Load::number_of(record) == due++ && !record.redelivered, "record {} at {}",
                    Load::number_of(record), due);
            held.push_back(record.ref);
        }
        if (held.size() < 2 && got == Poll::record) continue;
        while (!held.empty()) {
            consumer->release(held.back());
            held.pop_back();
            progress->released++;
        }
    }
}

}  // namespace rollring::test
