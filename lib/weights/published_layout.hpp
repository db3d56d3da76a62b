#pragma once
// The layout of a rank of a sharded trainer, against the tensors that it publishes.

#include "packing.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

// invalid_argument, naming the memory or the option; bad_manifest.
Result<void> check_layout(const PublisherOptions& options, const Packing& packing);

}  // namespace rollring::weights
