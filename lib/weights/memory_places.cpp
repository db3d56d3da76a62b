#include "memory_places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

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

}  // namespace rollring::weights
