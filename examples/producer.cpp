#include <rollring/producer.hpp>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
    auto producer = rollring::Producer::open("quickstart", {.name = "worker-0"});
    if (!producer) {
        std::cerr << producer.error().to_string() << '\n';
        return 1;
    }
    // The same prompt in a later pass is another group, with its own visit.
    const std::uint32_t visit = argc > 1 ? static_cast<std::uint32_t>(std::stoul(argv[1])) : 0;
    const std::vector<std::int32_t> tokens{101, 2009, 2003, 42, 102};
    const std::vector<float> logprobs{0, 0, 0, -0.25F, -0.5F};
    for (std::uint32_t repetition = 0; repetition < 4; repetition++) {
        rollring::Draft draft("gsm8k/train/17");  // the prompt, which is the group's key
        draft.meta = {.visit = visit,
                      .repetition_id = repetition,
                      .group_size = 4,
                      .n_prompt = 3,
                      .reward = repetition % 2 == 0 ? 0.0 : 1.0};  // half the answers are right
        draft.set(rollring::Std::token_ids, tokens).set(rollring::Std::logprobs, logprobs);
        const auto pushed = producer->push(draft, rollring::Deadline::after_ms(10'000));
        if (pushed != rollring::Push::ok) std::cerr << producer->problem() << '\n';
    }
}
