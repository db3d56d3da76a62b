// Taps beside producers and a consumer at full speed: each record that a tap returns has the
// content that follows from its name, and each record that was sent was returned or is counted as
// missed.
//
//   full_speed [--records N] [--gone N]
//
// Runs until the first tap has returned N records, and longer until both have met so many records
// that went while they were copied, but not beyond ten times the records.

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "rollring/tap.hpp"
#include "support/load.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint32_t producers = 3;
constexpr std::uint32_t taps = 2;

enum Phase : std::uint32_t { run, pause_producers, last_record, end };

struct Control {
    std::atomic<std::uint32_t> phase;
    std::atomic<std::uint32_t> paused;
    std::atomic<std::uint32_t> finished;
    std::atomic<std::uint32_t> drained;
    std::atomic<std::uint64_t> sent[producers];
};

void await(const std::function<bool()>& condition, std::string_view what) {
    for (const Deadline deadline = patience(); !condition(); std::this_thread::yield()) {
        require(!deadline.passed(), "{}", what);
    }
}

// FD RING STREAM
int producer_role(const std::vector<std::string>& arguments) {
    const Shared<Control> control(arguments.at(0));
    const std::uint64_t stream = std::stoull(arguments.at(2));
    auto producer = Producer::open(arguments.at(1), {.name = "tapped"});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    Load load;
    std::uint64_t number = 0;
    while (control->phase.load() == run) {
        require(load.push(*producer, stream, number++) == Push::ok, "push");
    }
    control->sent[stream] = number;
    control->paused++;
    await([&] { return control->phase.load() >= last_record; }, "no word for the last record");
    require(load.push(*producer, stream, number) == Push::ok, "the last push");
    control->sent[stream] = number + 1;
    control->finished++;
    await([&] { return control->phase.load() == end; }, "no word for the end");
    return 0;
}

// FD RING: releases each record at once, until all is released that the paused producers sent.
int consumer_role(const std::vector<std::string>& arguments) {
    const Shared<Control> control(arguments.at(0));
    auto consumer = Consumer::open(arguments.at(1));
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Record record;
    for (;;) {
        const bool last = control->paused.load() == producers;
        const Poll got = consumer->poll(record);
        if (got == Poll::record) {
            consumer->release(record.ref);
        } else if (last) {
            break;
        }
    }
    control->drained++;
    await([&] { return control->phase.load() == end; }, "no word for the end");
    return 0;
}

struct Heard {
    std::uint64_t records = 0;
    std::map<std::uint64_t, std::uint64_t> next;  // by stream
};

void hear(Tap& tap, Heard& heard) {
    TapRecord got;
    while (tap.poll(got) == TapPoll::record) {
        Record record;
        record.view = got.view;
        Load::verify(record);
        const std::uint64_t stream = Load::stream_of(record);
        const std::uint64_t number = Load::number_of(record);
        require(number == got.sequence, "record {} has the sequence {}", number, got.sequence);
        require(number >= heard.next[stream], "record {}/{} was returned before", stream, number);
        require(got.producer == "tapped", "its producer is called '{}'", got.producer);
        heard.next[stream] = number + 1;
        heard.records++;
    }
}

int run_test(const std::vector<std::string>& arguments) {
    const std::uint64_t wanted = option(arguments, "--records", 20'000);
    const std::uint64_t gone_wanted = option(arguments, "--gone", 10);
    const ScratchRing ring("tapped",
                           {.lanes = producers, .lane_bytes = 32 << 10, .soft_bytes = 32 << 10});
    const Shared<Control> control;
    std::vector<Tap> listening;
    std::vector<Heard> heard(taps);
    for (std::uint32_t i = 0; i < taps; i++) {
        auto tap = Tap::attach(ring.name(), {.round_bytes = i == 0 ? 1U << 20 : 1});
        require(tap.has_value(), "{}", tap ? "" : tap.error().to_string());
        listening.push_back(std::move(*tap));
    }
    std::vector<pid_t> roles{start_self({"--consumer", control.fd(), ring.name()})};
    for (std::uint32_t stream = 0; stream < producers; stream++) {
        roles.push_back(
            start_self({"--producer", control.fd(), ring.name(), std::to_string(stream)}));
    }
    const auto enough = [&] {
        std::uint64_t gone = 0;
        for (const Tap& tap : listening) gone += tap.stats().gone;
        const std::uint64_t records = heard[0].records;
        return records >= wanted && (gone >= gone_wanted || records >= 10 * wanted);
    };
    // A busy machine is slow, but records come.
    Deadline deadline = patience();
    for (std::uint64_t before = 0; !enough();) {
        for (std::uint32_t i = 0; i < taps; i++) hear(listening[i], heard[i]);
        if (heard[0].records != before) deadline = patience();
        before = heard[0].records;
        require(!deadline.passed(), "no record came after {}, and {} are wanted", before, wanted);
    }
    control->phase = pause_producers;
    await([&] { return control->drained.load() == 1; }, "the ring is not drained");
    control->phase = last_record;
    await([&] { return control->finished.load() == producers; }, "no last records");
    std::uint64_t sent = 0;
    for (const auto& of_stream : control->sent) sent += of_stream.load();
    for (std::uint32_t i = 0; i < taps; i++) {
        for (int lane = 0; lane <= 2 * static_cast<int>(producers); lane++) {
            hear(listening[i], heard[i]);
        }
        const TapStats stats = listening[i].stats();
        fmt::print("tap {}: {} records, {} missed, {} gone, {} unreadable, {} rounds\n", i,
                   stats.records, stats.missed, stats.gone, stats.unreadable, stats.rounds);
        require(stats.records == heard[i].records, "its count of records");
        require(stats.unreadable == 0, "no record is damaged");
        require(stats.gone <= stats.missed, "gone records are missed ones");
        require(stats.records + stats.missed == sent, "{} returned and {} missed of {} sent",
                stats.records, stats.missed, sent);
    }
    control->phase = end;
    for (const pid_t role : roles) require(collect(role) == 0, "a role failed");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return run_self(argc, argv, {{"--producer", producer_role}, {"--consumer", consumer_role}},
                    run_test);
}
