#include "tied_puts.hpp"

#include <fmt/format.h>

namespace rollring::weights {

Result<void> TiedPuts::check(std::uint32_t tensor, const void* source) const {
    if (source == nullptr) return {};
    const Packing& packing = tensors_->packing();
    const auto owner = static_cast<std::uint32_t>(packing.tensors[tensor].tied_to);
    const auto put = from_.find(owner);
    if (source == (put == from_.end() ? tensors_->address(owner) : put->second)) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("tensor '{}' is tied to '{}' and goes with it, but is put from "
                               "other memory: a trainer that has values of its own for it must "
                               "not declare it as tied",
                               packing.tensors[tensor].name, packing.tensors[owner].name));
}

}  // namespace rollring::weights
