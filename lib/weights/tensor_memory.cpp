#include "tensor_memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "packing.hpp"

namespace rollring::weights {

void MemoryPlaces::add(const void* address, std::uint64_t bytes, std::uint32_t tensor) {
    if (address != nullptr && bytes != 0) places_.push_back({address, bytes, tensor});
}

void MemoryPlaces::sort() {
    std::ranges::sort(places_, std::less(), &device::MemoryPlace::address);
}

std::optional<device::MemoryPlace> MemoryPlaces::find_absent(device::Mover& mover,
                                                             std::uint32_t first) const {
    std::vector<device::MemoryPlace> some;
    std::span<const device::MemoryPlace> looked_at = places_;
    if (first != 0) {
        std::ranges::copy_if(places_, std::back_inserter(some),
                             [&](const device::MemoryPlace& one) { return one.tensor >= first; });
        looked_at = some;
    }
    const auto found = mover.find_absent(looked_at);
    if (!found) return {};
    return looked_at[*found];
}

std::unexpected<Error> MemoryPlaces::released(std::string_view name, const void* address) {
    return refused(Errc::already_released,
                   fmt::format("tensor '{}' has no memory: the memory at {} was released or freed "
                               "(by a MemoryDomain, a memory saver, or vLLM's sleep); resume it, "
                               "or wake the engine up, before a version is sent or loaded",
                               name, address));
}

namespace {

constexpr std::uint64_t runs_most = 10'000'000;

struct Range {
    std::uint64_t begin;
    std::uint64_t end;
    const WeightTensor* tensor;
};

// The layout with the longest possible runs: the order of dimensions does not matter here.
Strided layout_of(const WeightTensor& tensor) {
    std::vector<std::size_t> order;
    order.reserve(tensor.strides.size());
    for (std::size_t i = 0; i < tensor.strides.size(); i++) order.push_back(i);
    std::ranges::sort(order, std::greater(), [&](std::size_t i) { return tensor.strides[i]; });
    Strided sorted;
    for (const std::size_t i : order) {
        sorted.shape.push_back(tensor.shape[i]);
        sorted.strides.push_back(tensor.strides[i]);
    }
    Strided layout = coalesce(sorted.shape, sorted.strides);
    if (layout.shape.empty()) {  // contiguous
        layout.shape = {static_cast<std::int64_t>(*count_elements(tensor))};
        layout.strides = {1};
    }
    return layout;
}

// Runs of adjacent bytes, in the order of their addresses; none: too many.
std::vector<std::pair<std::uint64_t, std::uint64_t>> runs_of(const WeightTensor& tensor) {
    const Strided layout = layout_of(tensor);
    const std::uint64_t element = tensor.dtype.bytes();
    const std::size_t dims = layout.shape.size();
    const bool rows = layout.strides.back() == 1;
    const std::size_t outer = rows ? dims - 1 : dims;
    const std::uint64_t length =
        rows ? static_cast<std::uint64_t>(layout.shape.back()) * element : element;
    std::uint64_t count = 1;
    for (std::size_t i = 0; i < outer; i++) count *= static_cast<std::uint64_t>(layout.shape[i]);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
    if (count > runs_most) return runs;
    runs.reserve(count);
    std::vector<std::int64_t> at(outer, 0);
    const auto base = reinterpret_cast<std::uint64_t>(tensor.data);
    for (std::uint64_t i = 0; i < count; i++) {
        std::uint64_t begin = base;
        for (std::size_t dim = 0; dim < outer; dim++) {
            begin += static_cast<std::uint64_t>(at[dim] * layout.strides[dim]) * element;
        }
        runs.emplace_back(begin, begin + length);
        for (std::size_t dim = outer; dim-- > 0;) {
            if (++at[dim] < layout.shape[dim]) break;
            at[dim] = 0;
        }
    }
    std::ranges::sort(runs);
    return runs;
}

bool share_bytes(const WeightTensor& one, const WeightTensor& two) {
    const auto first = runs_of(one);
    const auto second = runs_of(two);
    auto a = first.begin();
    auto b = second.begin();
    while (a != first.end() && b != second.end()) {
        if (a->second <= b->first) {
            ++a;
        } else if (b->second <= a->first) {
            ++b;
        } else {
            return true;
        }
    }
    return false;
}

}  // namespace

std::optional<std::pair<std::string_view, std::string_view>> find_overlap(
    std::span<const WeightTensor* const> written) {
    std::vector<Range> ranges;
    for (const WeightTensor* tensor : written) {
        const std::uint64_t elements = *count_elements(*tensor);
        if (elements == 0 || tensor->data == nullptr) continue;
        const auto begin = reinterpret_cast<std::uint64_t>(tensor->data);
        ranges.push_back({begin, begin + reach_bytes(*tensor, elements), tensor});
    }
    std::ranges::sort(ranges, {}, &Range::begin);
    std::vector<Range> open;  // that reach beyond the present range
    for (const Range& range : ranges) {
        std::erase_if(open, [&](const Range& other) { return other.end <= range.begin; });
        for (const Range& other : open) {
            if (share_bytes(*other.tensor, *range.tensor)) {
                return std::pair{std::string_view(other.tensor->name),
                                 std::string_view(range.tensor->name)};
            }
        }
        open.push_back(range);
    }
    return std::nullopt;
}

}  // namespace rollring::weights
