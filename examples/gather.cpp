#include <rollring/gather.hpp>
#include <rollring/stash.hpp>

#include <iostream>
#include <utility>
#include <vector>

// Into host memory; with Device::cuda(0), into GPU memory.
int main() {
    using rollring::Deadline;
    auto stash = rollring::Stash::open("quickstart", {.batch = rollring::BatchTarget::groups(1)});
    auto gatherer = rollring::Gatherer::open(rollring::Device::host());
    if (!stash || !gatherer) {
        std::cerr << (stash ? gatherer.error() : stash.error()).to_string() << '\n';
        return 1;
    }
    rollring::Batch batch;
    const auto got = (*stash)->next(batch, Deadline::after_ms(100));
    if (got != rollring::NextBatch::batch) return 0;  // no record was sent

    const rollring::Schema& schema = (*stash)->schema();
    const rollring::Layout layout{.form = rollring::Form::padded,
                                  .padding = {.side = rollring::Side::left, .multiple_of = 8}};
    rollring::GatherColumn ids{.column = static_cast<std::uint16_t>(rollring::Std::token_ids),
                               .dtype = rollring::dtype_i64};
    const auto shape = rollring::gathered_shape(batch, schema, ids, layout);
    if (!shape) return 1;
    std::vector<std::int64_t> memory(shape->elements());  // i64[sequences, length]
    ids.to = std::as_writable_bytes(std::span(memory));
    if (!gatherer->gather(batch, schema, {&ids, 1}, layout)) return 1;  // queued, on a GPU
    std::cout << memory.size() << " elements, the first row ends with " << memory[7] << '\n';

    // The trainer continues; the batch is acknowledged once the GPU has read it.
    rollring::ReadBatches reading;
    const std::int64_t step = (*stash)->last_acked_step() + 1;
    if (!reading.ack_after(std::move(batch), step, *gatherer)) return 1;
    return reading.finish(Deadline::after_ms(10'000)) ? 0 : 1;  // advance() does not wait
}
