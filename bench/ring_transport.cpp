// rollring as its users use it: Producer::push of a Draft, Consumer::poll or wait, release.

#include <fmt/format.h>
#include <unistd.h>

#include "records.hpp"
#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"

namespace bench {
namespace {

std::string ring_name() {
    return fmt::format("bench-{}", getpid());
}

void produce(const std::string& name, Board& board, const Plan& plan) {
    auto opened = rollring::Producer::open(name, {.name = "bench"});
    if (!opened) board.give_up(opened.error().to_string());
    rollring::Producer& producer = *opened;
    const Source source(plan.n_tokens, plan.experts);
    board.meet();
    auto deadline = rollring::Deadline::after_ms(10'000);
    for (std::uint64_t i = 0; i < plan.total(); i++) {
        // One deadline serves many calls; the limit's producer reads no clock either.
        if (i % 64 == 0) deadline = rollring::Deadline::after_ms(10'000);
        const Slice& slice = source[i];
        rollring::Draft draft("bench-instance");
        draft.meta.repetition_id = static_cast<std::uint32_t>(i);
        fill(draft, slice);
        if (plan.experts.layers != 0) fill_experts(draft, slice, plan.experts);
        const bool last_of_batch = plan.batch == 1 || (i + 1) % plan.batch == 0;
        const rollring::Push push =
            last_of_batch ? producer.push(draft, deadline) : producer.push_later(draft, deadline);
        if (push != rollring::Push::ok) board.give_up("push: " + producer.problem());
    }
    producer.flush();
    const rollring::ProducerStats stats = producer.stats();
    board.figures[1] = static_cast<std::int64_t>(stats.laps_soft);
    board.figures[2] = static_cast<std::int64_t>(stats.laps_full);
    board.figures[3] = static_cast<std::int64_t>(stats.waits);
    board.figures[4] = static_cast<std::int64_t>(stats.bytes / stats.records);
}

void consume(const std::string& name, bool sleeping, Board& board, const Plan& plan) {
    auto opened = rollring::Consumer::open(name);
    if (!opened) board.give_up(opened.error().to_string());
    rollring::Consumer& consumer = *opened;
    Meter meter(board, plan);
    board.meet();
    rollring::Record record;
    while (!meter.done()) {
        const rollring::Poll got = sleeping
                                       ? consumer.wait(record, rollring::Deadline::after_ms(10'000))
                                       : consumer.poll(record);
        if (got == rollring::Poll::empty) {
            relax();
            continue;
        }
        if (got != rollring::Poll::record) board.give_up("no record within 10 s");
        std::uint64_t sum = sum_record(record.view);
        if (plan.experts.layers != 0) sum += sum_experts(record.view);
        const std::uint64_t sent = sum_sent(record.view);
        const std::uint64_t sequence = record.sequence;
        consumer.release(record.ref);
        meter.record(sequence, sum, sent);
    }
}

}  // namespace

Transport RingTransport::transport() const {
    return {name,
            [ring = ring_name()](Board& board, const Plan& plan) { produce(ring, board, plan); },
            [ring = ring_name(), sleep = sleeping](Board& board, const Plan& plan) {
                consume(ring, sleep, board, plan);
            }};
}

Measured measure_ring(const RingTransport& ring, const Plan& plan, const Cpus& cpus) {
    const std::string name = ring_name();
    const auto made = rollring::create_ring(
        name, {.lanes = ring.lanes, .lane_bytes = ring.lane_bytes, .soft_bytes = ring.soft_bytes});
    if (!made) fail(made.error().to_string());
    const Measured measured = measure(ring.transport(), plan, cpus);
    static_cast<void>(rollring::remove_ring(name, true));
    return measured;
}

}  // namespace bench
