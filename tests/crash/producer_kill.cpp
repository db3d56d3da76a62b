// Producers killed at random moments: what they committed arrives, once, whole and in order; their
// lane is free again; the others go on.

#include <algorithm>
#include <csignal>
#include <map>
#include <vector>

#include "load.hpp"
#include "random_kill.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t alive_at_once = 4;  // as many as there are lanes
constexpr std::size_t held_max = 12;
constexpr std::size_t lives_max = 1 << 17;

// Written by one producer process, read by the parent after its death.
struct Life {
    std::atomic<std::uint64_t> attempted;  // stored before the call
    std::atomic<std::uint64_t> committed;  // stored after it has returned
    std::atomic<std::int64_t> open_ns;     // how long it took to get a lane
};
struct Lives {
    Life life[lives_max];
};

struct Seen {
    pid_t pid = 0;
    std::uint64_t records = 0;
    std::int64_t last_ns = 0;
    bool running = true;
    bool joined = false;
    bool told_lost = false;
};

class ProducerKill {
  public:
    ProducerKill(std::uint64_t seed, std::uint64_t kills)
        : dice_{seed},
          kills_wanted_(kills),
          ring_("producers",
                {.lanes = alive_at_once, .lane_bytes = 128 << 10, .soft_bytes = 32768}),
          consumer_(open()) {
        require(kills + alive_at_once < lives_max, "at most {} kills", lives_max);
    }

    ~ProducerKill() {
        for (const Seen& one : seen_) {
            if (one.running) kill_and_collect(one.pid);
        }
    }

    void run() {
        for (std::uint32_t i = 0; i < alive_at_once; i++) running_.push_back(start());
        std::int64_t next_ns = monotonic_ns();
        while (kills_ < kills_wanted_) {
            turn();
            if (monotonic_ns() < next_ns) continue;
            strike(dice_.below(alive_at_once));
            running_[struck_] = start();
            next_ns =
                monotonic_ns() + 1'000'000 + static_cast<std::int64_t>(dice_.below(4'000'000));
        }
        for (std::uint32_t i = 0; i < alive_at_once; i++) strike(i);
        finish();
        report();
    }

  private:
    Consumer open() {
        auto opened = Consumer::open(ring_.name());
        require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
        return std::move(*opened);
    }

    std::size_t start() {
        const std::size_t stream = seen_.size();
        Seen one;
        one.pid = start_self({"--producer", lives_.fd(), ring_.name(), std::to_string(stream)});
        seen_.push_back(one);
        return stream;
    }

    void strike(std::size_t slot) {
        struck_ = slot;
        Seen& victim = seen_[running_[slot]];
        victim.running = false;
        require(kill_and_collect(victim.pid), "producer {} ended by itself", running_[slot]);
        kills_++;
        const Life& life = lives_->life[running_[slot]];
        struck_at_work_ += life.attempted.load() > 0 ? 1 : 0;
        struck_in_push_ += life.attempted.load() > life.committed.load() ? 1 : 0;
    }

    // One poll, and a release in random order. False if there was nothing to do.
    bool turn() {
        Record record;
        const Poll got = consumer_.poll(record);
        if (got == Poll::record) take(record);
        if (held_.size() > held_max || (got != Poll::record && !held_.empty())) {
            std::swap(held_[dice_.below(held_.size())], held_.back());
            consumer_.release(held_.back());
            held_.pop_back();
        }
        Event event;
        while (consumer_.next_event(event)) hear(event);
        return got == Poll::record;
    }

    void take(const Record& record) {
        Load::verify(record);
        const std::uint64_t stream = Load::stream_of(record);
        require(stream < seen_.size(), "a record of nobody's: stream {}", stream);
        Seen& one = seen_[stream];
        require(Load::number_of(record) == one.records && record.sequence == one.records,
                "stream {}: record {} (sequence {}) came where {} was due", stream,
                Load::number_of(record), record.sequence, one.records);
        require(!record.redelivered, "stream {}: record {} redelivered", stream, one.records);
        one.records++;
        records_++;
        held_.push_back(record.ref);
        const std::int64_t now_ns = monotonic_ns();
        if (one.running && one.last_ns != 0) gap_ns_ = std::max(gap_ns_, now_ns - one.last_ns);
        one.last_ns = now_ns;
    }

    void hear(const Event& event) {
        Seen& one = seen_.at(std::stoull(event.producer));
        switch (event.kind) {
            case Event::Kind::producer_joined:
                one.joined = true;
                break;
            case Event::Kind::producer_lost:
                require(!one.running, "producer {} was taken for dead", event.producer);
                require(event.records == one.records, "producer {}: {} records told, {} seen",
                        event.producer, event.records, one.records);
                one.told_lost = true;
                check(std::stoull(event.producer));
                break;
            default:
                throw Failure(
                    fmt::format("{} of {}: {}", name(event.kind), event.producer, event.detail));
        }
    }

    // Everything whose commit returned has arrived, nothing that was never sent.
    void check(std::size_t stream) {
        const Life& life = lives_->life[stream];
        const std::uint64_t got = seen_[stream].records;
        require(got >= life.committed.load(), "producer {} committed {} records, {} arrived",
                stream, life.committed.load(), got);
        require(got <= life.attempted.load(), "producer {} sent {} records, {} arrived", stream,
                life.attempted.load(), got);
    }

    void finish() {
        const Deadline deadline = patience();
        while (turn() || consumer_.producers_active() > 0 || !held_.empty()) {
            require(!deadline.passed(), "{} lanes are never given back",
                    consumer_.producers_active());
        }
        for (std::size_t stream = 0; stream < seen_.size(); stream++) {
            check(stream);
            const Seen& one = seen_[stream];
            require(one.joined == one.told_lost, "producer {} joined, its end was not told",
                    stream);
            joined_ += one.joined ? 1 : 0;
        }
        const ConsumerStats stats = consumer_.stats();
        require(stats.lost == 0 && stats.duplicates == 0 && stats.torn == 0 &&
                    stats.redelivered == 0 && stats.quarantines == 0 && stats.events_missed == 0,
                "lost {} duplicates {} torn {} redelivered {} quarantines {} events missed {}",
                stats.lost, stats.duplicates, stats.torn, stats.redelivered, stats.quarantines,
                stats.events_missed);
        require(stats.producers_lost == joined_, "{} producers lost, {} told", joined_,
                stats.producers_lost);
    }

    void report() {
        std::int64_t open_ns = 0;
        for (std::size_t i = 0; i < seen_.size(); i++) {
            open_ns = std::max(open_ns, lives_->life[i].open_ns.load());
        }
        const auto stat = stat_ring(ring_.name());
        std::uint64_t laps_soft = 0;
        std::uint64_t laps_full = 0;
        std::uint64_t jumps = 0;
        for (const LaneStat& lane : stat->lanes) {
            laps_soft += lane.laps_soft;
            laps_full += lane.laps_full;
            jumps += lane.jumps;
        }
        fmt::print(
            "producers: kills={} at_work={} in_push={} joined={} records={} laps_soft={} "
            "laps_full={} jumps={} longest_survivor_gap_ms={:.1f} longest_open_ms={:.1f}\n",
            kills_, struck_at_work_, struck_in_push_, joined_, records_, laps_soft, laps_full,
            jumps, static_cast<double>(gap_ns_) / 1e6, static_cast<double>(open_ns) / 1e6);
        require(kills_ >= kills_wanted_, "only {} kills", kills_);
        require(struck_at_work_ >= kills_ / 4, "only {} kills struck at work", struck_at_work_);
        require(struck_in_push_ >= kills_ / 20, "only {} kills struck a push", struck_in_push_);
        require(records_ >= kills_ * 5, "only {} records", records_);
        require(laps_soft > 0 && laps_full > 0 && jumps > 0, "the lanes were not worked hard");
    }

    Dice dice_;
    std::uint64_t kills_wanted_;
    Shared<Lives> lives_;
    ScratchRing ring_;
    Consumer consumer_;
    std::vector<Seen> seen_;            // by stream
    std::vector<std::size_t> running_;  // streams
    std::vector<RecordRef> held_;
    std::size_t struck_ = 0;
    std::uint64_t kills_ = 0;
    std::uint64_t struck_at_work_ = 0;
    std::uint64_t struck_in_push_ = 0;
    std::uint64_t records_ = 0;
    std::uint64_t joined_ = 0;
    std::int64_t gap_ns_ = 0;
};

}  // namespace

void kill_producers(std::uint64_t seed, std::uint64_t kills) {
    ProducerKill(seed, kills).run();
}

// FD RING STREAM: sends until killed.
int producer_role(const std::vector<std::string>& arguments) {
    const Shared<Lives> lives(arguments.at(0));
    const std::uint64_t stream = std::stoull(arguments.at(2));
    Life& life = lives->life[stream];
    const std::int64_t before_ns = monotonic_ns();
    auto producer = Producer::open(
        arguments.at(1),
        {.name = arguments.at(2), .attach_timeout_ms = 60'000, .checksum = Checksum::xxh3});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    life.open_ns = monotonic_ns() - before_ns;
    Load load;
    for (std::uint64_t number = 0;;) {
        const std::uint64_t batch = number % 5 == 0 ? 3 : 1;
        life.attempted = number + batch;
        for (std::uint64_t i = 0; i < batch; i++, number++) {
            const Push push = batch == 1
                                  ? load.push(*producer, stream, number)
                                  : producer->push_later(load.draft(stream, number), patience());
            require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
        }
        producer->flush();
        life.committed = number;
    }
}

}  // namespace rollring::test
