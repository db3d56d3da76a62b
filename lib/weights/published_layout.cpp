#include "published_layout.hpp"

#include <fmt/core.h>

#include <string_view>
#include <unordered_map>

#include "rollring/weight_layout.hpp"

namespace rollring::weights {

Result<void> check_layout(const PublisherOptions& options, const Packing& packing) {
    const auto layout = WeightLayout::from_bytes(options.layout);
    if (!layout) return std::unexpected(layout.error());
    if (2 * packing.parts.size() > options.slots) {
        return refused(Errc::invalid_argument,
                       fmt::format("the slots of a sharded trainer hold the committed version and "
                                   "the next one, which have {} parts each, and there are {}: "
                                   "leave slot_bytes and slots at 0, or raise them",
                                   packing.parts.size(), options.slots));
    }
    std::unordered_map<std::string_view, const PackedTensor*> names;
    for (const PackedTensor& tensor : packing.tensors) names.emplace(tensor.name, &tensor);
    for (const LayoutMemory& memory : layout->memories()) {
        const auto found = names.find(memory.name);
        if (memory.rank != options.rank || found == names.end()) {
            return refused(
                Errc::invalid_argument,
                fmt::format("the layout has memory '{}' of rank {}, which is not a tensor "
                            "of this publisher, of rank {}",
                            memory.name, memory.rank, options.rank));
        }
        const PackedTensor& tensor = *found->second;
        if (tensor.dtype == memory.dtype && tensor.elements == memory.elements) continue;
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' is published with {} elements of {}, and the "
                                   "layout says {} of {}",
                                   memory.name, tensor.elements, tensor.dtype.to_string(),
                                   memory.elements, memory.dtype.to_string()));
    }
    return {};
}

}  // namespace rollring::weights
