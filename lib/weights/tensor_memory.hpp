#pragma once
// Checks the memory of tensors before anything is copied to it or from it.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring::weights {

// Whether memory exists: an address may outlive the memory behind it, if that can be released.
class MemoryPlaces {
  public:
    // `tensor`: its index.
    void add(const void* address, std::uint64_t bytes, std::uint32_t tensor);
    // Sorts by address, once all are added.
    void sort();
    // Checks the memory of tensors from `first` on; already_released, naming the first one without
    // memory. `name_of(tensor)` gives a name.
    template <class NameOf>
    Result<void> check(device::Mover& mover, const NameOf& name_of, std::uint32_t first = 0) const {
        const auto absent = find_absent(mover, first);
        if (!absent) return {};
        return released(name_of(absent->tensor), absent->address);
    }

  private:
    static std::unexpected<Error> released(std::string_view name, const void* address);
    [[nodiscard]] std::optional<device::MemoryPlace> find_absent(device::Mover& mover,
                                                                 std::uint32_t first) const;

    std::vector<device::MemoryPlace> places_;
};

// Finds tensors that are written by different published ones and share memory, so that the last
// copy would win silently: returns the names of two. Each tensor was checked (check_tensor). Exact
// for every layout of up to some 10 million runs of bytes; beyond that, tensors that interleave
// count as disjoint.
std::optional<std::pair<std::string_view, std::string_view>> find_overlap(
    std::span<const WeightTensor* const> written);

}  // namespace rollring::weights
