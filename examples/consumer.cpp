#include <rollring/consumer.hpp>

#include <iostream>

int main() {
    auto consumer = rollring::Consumer::open("quickstart");
    if (!consumer) {
        std::cerr << consumer.error().to_string() << '\n';
        return 1;
    }
    rollring::Record record;
    while (consumer->wait(record, rollring::Deadline::after_ms(2'000)) == rollring::Poll::record) {
        const auto& view = record.view;  // spans over shared memory, nothing copied
        std::cout << view.instance_id() << " #" << view.meta().repetition_id.value_or(0) << ": "
                  << view.token_ids().size() << " tokens, last logprob " << view.logprobs().back()
                  << '\n';
        consumer->release(record.ref);  // in any order, at any later time
    }
}
