#pragma once
// Random views of random tensors. Beside the offset and the strides that each view has, its
// elements are kept as a list of their own, which every step (narrow, swap, split, ...) changes
// element by element: the engine's tensors must hold that list in the end.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "manifest.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring::test {

struct ViewSizes {
    std::uint64_t elements_max = 4000;  // of a published tensor
    std::uint64_t extent_max = 300;     // of all dimensions but the first
    std::uint64_t row_multiple = 1;     // of the last extent, so that long rows are aligned
    std::uint64_t slot_bytes = 0;
    std::size_t views = 12;
};

// One channel without its ring: published tensors, as they lie in slots, and an engine's tensors.
struct ViewCase {
    weights::Manifest manifest;
    std::vector<WeightTensor> published;
    std::vector<std::vector<std::byte>> memory;  // of published tensors
    std::vector<std::vector<std::byte>> slots;   // of each part

    std::vector<WeightTensor> into;  // `data` counts from the start of the arena
    std::vector<std::byte> arena;    // of the engine, with bytes between that must stay untouched
    std::vector<std::byte> wanted;   // the arena after a load

    // The engine's tensors where the arena lies.
    [[nodiscard]] std::vector<WeightTensor> placed(std::byte* at) const;
};
ViewCase random_views(const ViewSizes& sizes, std::mt19937_64& dice);

}  // namespace rollring::test
