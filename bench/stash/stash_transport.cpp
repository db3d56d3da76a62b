#include "stash/stash_transport.hpp"

#include <algorithm>

#include "ring/records.hpp"
#include "rollring/stash.hpp"

namespace bench {
namespace {

constexpr std::uint64_t sequences_at_once = 16;  // as bench/peers/peers.py

void produce_singles(const std::string& ring, Board& board, const Plan& plan) {
    Sender sender(board, ring);
    const Source source(plan.n_tokens);
    board.meet();
    for (std::uint64_t i = 0; i < plan.total(); i++) {
        rollring::Draft draft("record");
        draft.meta.visit = static_cast<std::uint32_t>(i);
        draft.meta.group_size = 1;
        fill(draft, source[i]);
        sender.push(draft);
    }
}

void consume(const std::string& ring, Board& board, const Plan& plan) {
    auto stash = must(
        board,
        rollring::Stash::open(ring, {.group_size = 1,
                                     .min_size = 1,
                                     .batch = rollring::BatchTarget::sequences(sequences_at_once),
                                     .advantages = rollring::Advantages::none}));
    board.meet();
    Meter meter(board, plan);
    rollring::Batch batch;
    for (std::int64_t step = 0; !meter.done(); step++) {
        if (stash->next(batch, rollring::Deadline::after_ms(10'000)) !=
            rollring::NextBatch::batch) {
            board.give_up("no batch within 10 s");
        }
        for (const rollring::Sequence& sequence : batch.sequences()) {
            const rollring::TrajectoryView& view = sequence.view;
            meter.record(view.meta().visit, sum_record(view), sum_sent(view));
        }
        must(board, batch.ack(step));
    }
}

}  // namespace

Measured measure_stash_loop(const Plan& plan, const Cpus& cpus) {
    const ScratchRing ring({.lanes = 1, .lane_bytes = std::uint64_t{64} << 20});
    return measure(
        {"rollring's stash",
         [&](Board& board, const Plan& work) { produce_singles(ring.name(), board, work); },
         [&](Board& board, const Plan& work) { consume(ring.name(), board, work); }},
        plan, cpus);
}

}  // namespace bench
