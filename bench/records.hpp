#pragma once
// The work's records as rollring's: three columns in, the same read in full; the sum travels along
// as the source's number.

#include "rollring/trajectory.hpp"
#include "workload.hpp"

namespace bench {

inline void fill(rollring::Draft& draft, const Slice& slice) {
    draft.meta.source_id = static_cast<std::int64_t>(slice.sum);
    draft.set(rollring::Std::token_ids, slice.token_ids)
        .set(rollring::Std::logprobs, slice.logprobs)
        .set(rollring::Std::loss_mask, slice.loss_mask);
}

inline void fill_experts(rollring::Draft& draft, const Slice& slice, const Experts& experts) {
    draft.add({.column = static_cast<std::uint16_t>(rollring::Std::routed_experts),
               .dtype = rollring::dtype_of<std::uint16_t>(),
               .shape = {static_cast<std::uint32_t>(slice.token_ids.size()), experts.layers,
                         experts.k, 0},
               .dims = 3,
               .data = slice.experts.data()});
}

inline std::uint64_t sum_record(const rollring::TrajectoryView& view) {
    const auto tokens = view.token_ids();
    const auto logprobs = view.logprobs();
    const auto mask = view.loss_mask();
    return sum_words(tokens.data(), tokens.size_bytes()) +
           sum_words(logprobs.data(), logprobs.size_bytes()) +
           sum_words(mask.data(), mask.size_bytes());
}

inline std::uint64_t sum_experts(const rollring::TrajectoryView& view) {
    const auto experts = view.values<std::uint16_t>(rollring::Std::routed_experts);
    return sum_words(experts.data(), experts.size_bytes());
}

inline std::uint64_t sum_sent(const rollring::TrajectoryView& view) {
    return static_cast<std::uint64_t>(view.meta().source_id.value_or(0));
}

}  // namespace bench
