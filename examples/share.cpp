#include <rollring/batch.hpp>
#include <rollring/stash.hpp>

#include <iostream>

// Trainer and rank in one program; in a run they are separate processes.
int main() {
    using rollring::Deadline;
    auto stash = rollring::Stash::open("quickstart", {.batch = rollring::BatchTarget::groups(1)});
    auto reader = rollring::Reader::attach("quickstart");
    if (!stash || !reader) {
        std::cerr << (stash ? reader.error() : stash.error()).to_string() << '\n';
        return 1;
    }
    rollring::Batch batch;
    const auto got = (*stash)->next(batch, Deadline::after_ms(100));
    if (got != rollring::NextBatch::batch) return 0;  // no record was sent
    for (std::uint32_t rank = 0; rank < 2; rank++) {
        const auto ticket = batch.ticket({.rank = rank, .world = 2});
        if (!ticket) return 1;
        auto share = reader->open(*ticket);
        if (!share) return 1;
        std::cout << "rank " << rank << ": " << share->cu_seqlens().back() << " tokens\n";
        if (!share->close()) return 1;  // discard it: its memory was released meanwhile
    }
    return batch.ack((*stash)->last_acked_step() + 1) ? 0 : 1;
}
