#include "test_ring.hpp"

#include <vector>

namespace rollring::test {

Push send(Producer& producer, const Sent& record, Deadline deadline) {
    const std::vector<std::int32_t> tokens(record.tokens,
                                           static_cast<std::int32_t>(record.repetition));
    Draft draft(record.prompt);
    draft.meta.repetition_id = record.repetition;
    draft.meta.group_size = record.group_size;
    draft.meta.attempt = record.attempt;
    draft.meta.reward = record.reward;
    draft.set(Std::token_ids, tokens);
    return producer.push(draft, deadline);
}

}  // namespace rollring::test
