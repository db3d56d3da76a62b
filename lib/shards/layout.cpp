#include "rollring/weight_layout.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "layout_limits.hpp"

namespace rollring {
namespace {

using namespace shards;

// Whether the text has whole characters of UTF-8 only, each in its shortest form, without halves of
// pairs.
bool is_utf8(std::string_view text) {
    const auto byte = [&](std::size_t at) {
        return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
    };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned lead = byte(i);
        const unsigned second = byte(i + 1);
        const std::size_t more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
        if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4) return false;
        if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0) ||
            (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second >= 0x90)) {
            return false;
        }
        for (std::size_t next = 1; next <= more; next++) {
            if ((byte(i + next) & 0xc0U) != 0x80) return false;
        }
        i += more + 1;
    }
    return true;
}

Result<void> check_layout_name(std::string_view what, std::string_view name) {
    if (!name.empty() && name.size() <= name_bytes_max && is_utf8(name)) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("the name of a {} of a layout has {} bytes: 1 to {} of UTF-8", what,
                               name.size(), name_bytes_max));
}

Result<void> check_layout_shape(std::string_view name, std::span<const std::int64_t> shape) {
    std::uint64_t elements = 1;
    bool fits = shape.size() <= dims_max;
    for (const std::int64_t extent : shape) {
        // An extent of 0 counts as 1, so that the product of any of the extents is in range, too.
        const auto factor = static_cast<std::uint64_t>(std::max(extent, std::int64_t{1}));
        fits = fits && extent >= 0 && factor <= elements_max / elements;
        if (fits) elements *= factor;
    }
    if (fits) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("tensor '{}' of a layout: at most {} dimensions, none below zero, "
                               "and 2^40 elements",
                               name, dims_max));
}

std::string memory_key(std::uint32_t rank, std::string_view name) {
    return fmt::format("{} {}", rank, name);
}

std::string box_text(std::span<const std::int64_t> start, std::span<const std::int64_t> length) {
    std::string text = "[";
    for (std::size_t dim = 0; dim < start.size(); dim++) {
        text += fmt::format("{}{}:{}", dim == 0 ? "" : ", ", start[dim], start[dim] + length[dim]);
    }
    return text + "]";
}

bool lies_in_tensor(const LayoutBox& box, const LayoutTensor& tensor) {
    const std::size_t dims = tensor.shape.size();
    if (box.start.size() != dims || box.length.size() != dims || box.strides.size() != dims) {
        return false;
    }
    for (std::size_t dim = 0; dim < dims; dim++) {
        if (box.start[dim] < 0 || box.length[dim] < 0 || box.start[dim] > tensor.shape[dim] ||
            box.length[dim] > tensor.shape[dim] - box.start[dim]) {
            return false;
        }
    }
    return true;
}

// Whether its elements lie in the memory. The lengths are known to fit into the tensor.
bool lies_in_memory(const LayoutBox& box, const LayoutMemory& memory) {
    std::uint64_t last = box.offset;
    for (std::size_t dim = 0; dim < box.length.size(); dim++) {
        if (box.strides[dim] < 0 || last >= memory.elements) return false;
        const auto steps = static_cast<std::uint64_t>(box.length[dim]) - 1;
        const auto stride = static_cast<std::uint64_t>(box.strides[dim]);
        if (steps != 0 && stride > memory.elements / steps) return false;
        last += steps * stride;
    }
    return last < memory.elements;
}

}  // namespace

Result<std::uint32_t> WeightLayout::add_tensor(std::string_view name,
                                               std::span<const std::int64_t> shape,
                                               std::int64_t tied_to) {
    if (const auto found = tensor_index_.find(name); found != tensor_index_.end()) {
        const LayoutTensor& known = tensors_[found->second];
        if (std::ranges::equal(known.shape, shape) && known.tied_to == tied_to) {
            return found->second;
        }
        return refused(Errc::layout_mismatch,
                       fmt::format("tensor '{}' is in the layout with another shape or tie", name));
    }
    if (auto named = check_layout_name("tensor", name); !named)
        return std::unexpected(named.error());
    if (auto shaped = check_layout_shape(name, shape); !shaped)
        return std::unexpected(shaped.error());
    const auto count = static_cast<std::int64_t>(tensors_.size());
    const bool tie_holds =
        tied_to == -1 || (tied_to >= 0 && tied_to < count && tensors_[tied_to].tied_to == -1 &&
                          std::ranges::equal(tensors_[tied_to].shape, shape));
    if (!tie_holds) {
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' can only be tied to an earlier tensor of the same "
                                   "shape that has values of its own",
                                   name));
    }
    if (tensors_.size() == entries_max) {
        return refused(Errc::invalid_argument, "a layout has at most 2^24 tensors");
    }
    tensors_.push_back({std::string(name), {shape.begin(), shape.end()}, tied_to});
    tensor_index_.emplace(tensors_.back().name, static_cast<std::uint32_t>(count));
    return static_cast<std::uint32_t>(count);
}

Result<std::uint32_t> WeightLayout::add_memory(const LayoutMemory& memory) {
    if (auto named = check_layout_name("memory", memory.name); !named) {
        return std::unexpected(named.error());
    }
    if (memory.dtype.to_string().empty() || memory.elements > elements_max ||
        memory.rank >= ranks_max || memories_.size() == entries_max) {
        return refused(
            Errc::invalid_argument,
            fmt::format("memory '{}' of rank {}: its dtype is unknown, its rank is {} or "
                        "more, it has more than 2^40 elements, or it is one of more "
                        "than 2^24 memories",
                        memory.name, memory.rank, ranks_max));
    }
    const auto index = static_cast<std::uint32_t>(memories_.size());
    if (!memory_index_.emplace(memory_key(memory.rank, memory.name), index).second) {
        return refused(Errc::invalid_argument,
                       fmt::format("rank {} has a memory '{}' already", memory.rank, memory.name));
    }
    memories_.push_back(memory);
    return index;
}

Result<void> WeightLayout::add_box(const LayoutBox& box) {
    if (box.tensor >= tensors_.size() || box.memory >= memories_.size()) {
        return refused(Errc::invalid_argument, "a box of a tensor or memory that is not there");
    }
    const LayoutTensor& tensor = tensors_[box.tensor];
    const LayoutMemory& memory = memories_[box.memory];
    if (!lies_in_tensor(box, tensor)) {
        return refused(Errc::invalid_argument,
                       fmt::format("a box in memory '{}' of rank {} exceeds tensor '{}', or has "
                                   "another number of dimensions",
                                   memory.name, memory.rank, tensor.name));
    }
    const bool empty = std::ranges::find(box.length, 0) != box.length.end();
    if (empty) return {};
    if (!lies_in_memory(box, memory)) {
        return refused(
            Errc::invalid_argument,
            fmt::format("box {} of tensor '{}' exceeds the {} elements of memory '{}' of rank {}",
                        box_text(box.start, box.length), tensor.name, memory.elements, memory.name,
                        memory.rank));
    }
    if (boxes_.size() == entries_max) {
        return refused(Errc::invalid_argument, "a layout has at most 2^24 boxes");
    }
    boxes_.push_back({box.offset, box.tensor, box.memory, dims_.size()});
    // The spans may be those of a box of this layout, in dims_, which moves when it grows.
    std::array<std::int64_t, 3 * dims_max> numbers;
    auto end = numbers.begin();
    for (const auto& part : {box.start, box.length, box.strides}) {
        end = std::ranges::copy(part, end).out;
    }
    dims_.insert(dims_.end(), numbers.begin(), end);
    return {};
}

Result<void> WeightLayout::add(const WeightLayout& other) {
    std::vector<std::uint32_t> tensors;
    for (const LayoutTensor& tensor : other.tensors_) {
        const std::int64_t tie =
            tensor.tied_to < 0 ? -1
                               : std::int64_t{tensors[static_cast<std::size_t>(tensor.tied_to)]};
        const auto added = add_tensor(tensor.name, tensor.shape, tie);
        if (!added) return std::unexpected(added.error());
        tensors.push_back(*added);
    }
    std::vector<std::uint32_t> memories;
    for (const LayoutMemory& memory : other.memories_) {
        const auto added = add_memory(memory);
        if (!added) return std::unexpected(added.error());
        memories.push_back(*added);
    }
    for (std::size_t i = 0; i < other.boxes(); i++) {
        LayoutBox box = other.box(i);
        box.tensor = tensors[box.tensor];
        box.memory = memories[box.memory];
        if (auto added = add_box(box); !added) return added;
    }
    return {};
}

LayoutBox WeightLayout::box(std::size_t index) const {
    const Row& row = boxes_[index];
    const std::size_t dims = tensors_[row.tensor].shape.size();
    const std::span<const std::int64_t> all = std::span(dims_).subspan(row.first_dim, 3 * dims);
    return {.tensor = row.tensor,
            .memory = row.memory,
            .offset = row.offset,
            .start = all.first(dims),
            .length = all.subspan(dims, dims),
            .strides = all.last(dims)};
}

std::string WeightLayout::text_of(std::size_t index) const {
    const LayoutBox at = box(index);
    const LayoutMemory& memory = memories_[at.memory];
    return fmt::format("rank {}, '{}': {}", memory.rank, memory.name,
                       box_text(at.start, at.length));
}

}  // namespace rollring
