#pragma once
// The ranks of a sharded trainer as an engine finds them, and the tensors that it takes from each.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "gpus.hpp"
#include "greeting.hpp"
#include "manifest.hpp"
#include "ring_link.hpp"
#include "rollring/weight_layout.hpp"
#include "rollring/weight_plan.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

// Asks all ranks as an onlooker, whom no publisher takes for an engine. not_found: one may be about
// to come.
Result<std::vector<Manifest>> manifests_of_ranks(std::string_view ring, const RingLink& link,
                                                 std::string_view name, Patience& patience);

// The layout of the trainer, of all ranks. layout_mismatch: a rank publishes whole tensors.
Result<WeightLayout> layout_of(std::span<const Manifest> ranks);

struct ShardSources {
    // By rank of the trainer: views of its tensors.
    std::vector<std::vector<WeightTensor>> into;
    std::vector<TensorInfo> tensors;  // that the trainer has, as a whole
};

// Plans the copies into the engine's tensors. layout_mismatch, unsupported or invalid_argument,
// naming the tensor.
Result<ShardSources> shard_sources(std::span<const Manifest> ranks, const WeightLayout& engine,
                                   std::span<const WeightTensor> into,
                                   const SubscriberOptions& options, const device::Gpus& gpus);

}  // namespace rollring::weights
