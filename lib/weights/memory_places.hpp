#pragma once
// The memory of tensors, as it is looked at before anything is copied there or from there: an
// address outlives the memory behind it where that can be released.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend.hpp"

namespace rollring::weights {

class MemoryPlaces {
  public:
    // `tensor`: its index.
    void add(const void* address, std::uint64_t bytes, std::uint32_t tensor);
    // In the order of addresses: once, when all were added.
    void sort();
    // Whether memory is there, of tensors from `first` on; already_released, naming the first one
    // where there is none. `name_of(tensor)` gives a name.
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

}  // namespace rollring::weights
