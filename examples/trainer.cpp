#include <rollring/stash.hpp>

#include <iostream>

int main() {
    auto stash = rollring::Stash::open("quickstart", {.batch = rollring::BatchTarget::groups(1)});
    if (!stash) {
        std::cerr << stash.error().to_string() << '\n';
        return 1;
    }
    std::int64_t step = (*stash)->last_acked_step() + 1;  // continue after a restart
    rollring::Batch batch;
    while ((*stash)->next(batch, rollring::Deadline::after_ms(2'000)) ==
           rollring::NextBatch::batch) {
        for (std::size_t i = 0; i < batch.sequences().size(); i++) {
            const auto& view = batch.sequences()[i].view;  // spans over shared memory
            std::cout << view.instance_id() << " #" << batch.repetition_ids()[i] << ": "
                      << view.token_ids().size() << " tokens, advantage " << batch.advantages()[i]
                      << '\n';
        }
        if (const auto done = batch.ack(step++); !done) {  // atomic, even if we die here
            std::cerr << done.error().to_string() << '\n';
            return 1;
        }
    }
}
