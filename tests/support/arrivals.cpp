#include "arrivals.hpp"

#include <utility>

namespace rollring::test {
namespace {

constexpr std::size_t held_max = 12;

Consumer open_consumer(const std::string& ring) {
    auto opened = Consumer::open(ring);
    require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
    return std::move(*opened);
}

}  // namespace

Arrivals::Arrivals(const std::string& ring, Dice& dice)
    : ring_(ring), dice_(dice), consumer_(open_consumer(ring)) {}

Arrivals::~Arrivals() {
    for (const Seen& one : seen_) {
        if (one.running) kill_and_collect(one.pid);
    }
}

std::size_t Arrivals::start(const std::string& fault, std::uint64_t records) {
    const std::size_t stream = seen_.size();
    require(stream < lives_max, "more than {} producers", lives_max);
    Seen one;
    one.pid = start_self(
        {"--producer", lives_.fd(), ring_, std::to_string(stream), std::to_string(records)}, fault);
    seen_.push_back(one);
    return stream;
}

bool Arrivals::strike(std::size_t stream) {
    seen_[stream].running = false;
    return kill_and_collect(seen_[stream].pid);
}

bool Arrivals::turn() {
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

void Arrivals::take(const Record& record) {
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

void Arrivals::hear(const Event& event) {
    Seen& one = seen_.at(std::stoull(event.producer));
    switch (event.kind) {
        case Event::Kind::producer_joined:
            one.joined = true;
            break;
        case Event::Kind::producer_died:
            require(!one.running || is_ending(one.pid), "producer {} was taken for dead",
                    event.producer);
            require(event.records == one.records, "producer {}: {} records told, {} seen",
                    event.producer, event.records, one.records);
            one.told_dead = true;
            check(std::stoull(event.producer));
            break;
        case Event::Kind::producer_closed:
            one.told_closed = true;
            check(std::stoull(event.producer));
            break;
        default:
            throw Failure(
                fmt::format("{} of {}: {}", name(event.kind), event.producer, event.detail));
    }
}

// Everything whose commit returned has arrived, nothing that was never sent.
void Arrivals::check(std::size_t stream) const {
    const Life& life = lives_->life[stream];
    const std::uint64_t got = seen_[stream].records;
    require(got >= life.committed.load(), "producer {} committed {} records, {} arrived", stream,
            life.committed.load(), got);
    require(got <= life.attempted.load(), "producer {} sent {} records, {} arrived", stream,
            life.attempted.load(), got);
}

void Arrivals::finish() {
    const Deadline deadline = patience();
    while (turn() || consumer_.producers_active() > 0 || !held_.empty()) {
        require(!deadline.passed(), "{} lanes are never given back", consumer_.producers_active());
    }
    for (std::size_t stream = 0; stream < seen_.size(); stream++) {
        check(stream);
        const Seen& one = seen_[stream];
        require(one.joined == (one.told_dead || one.told_closed),
                "producer {} joined, its end was not told", stream);
        joined_ += one.joined ? 1 : 0;
    }
    const ConsumerStats stats = consumer_.stats();
    require(stats.lost == 0 && stats.duplicates == 0 && stats.torn == 0 && stats.redelivered == 0 &&
                stats.quarantines == 0 && stats.events_missed == 0,
            "lost {} duplicates {} torn {} redelivered {} quarantines {} events missed {}",
            stats.lost, stats.duplicates, stats.torn, stats.redelivered, stats.quarantines,
            stats.events_missed);
    require(stats.producers_died + stats.producers_closed == joined_, "{} producers, {} ends told",
            joined_, stats.producers_died + stats.producers_closed);
}

// FD RING STREAM RECORDS: sends until killed, or so many.
int producer_role(const std::vector<std::string>& arguments) {
    const Shared<Lives> lives(arguments.at(0));
    const std::uint64_t stream = std::stoull(arguments.at(2));
    const std::uint64_t records = std::stoull(arguments.at(3));
    Life& life = lives->life[stream];
    const std::int64_t before_ns = monotonic_ns();
    auto producer =
        Producer::open(arguments.at(1), {.name = arguments.at(2),
                                         .attach_timeout = std::chrono::milliseconds(60'000),
                                         .checksum = Checksum::xxh3});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    life.open_ns = monotonic_ns() - before_ns;
    Load load;
    for (std::uint64_t number = 0; records == 0 || number < records;) {
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
    return 0;
}

}  // namespace rollring::test
