#include "box_memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "strided.hpp"

namespace rollring::shards {
namespace {

// Of one layout: comparisons of two boxes, and of slices of them. It is seconds of work.
constexpr std::uint64_t steps_max = std::uint64_t{1} << 25;

class MemoryCheck {
  public:
    MemoryCheck(const WeightLayout& layout, std::span<const std::uint32_t> values)
        : layout_(layout), values_(values) {}

    Result<MemoryUse> run() {
        if (auto placed = place_all(); !placed) return std::unexpected(placed.error());
        use_.repeated.assign(layout_.boxes(), false);
        std::vector<std::size_t> order(layout_.boxes());
        std::iota(order.begin(), order.end(), std::size_t{0});
        const auto place = [&](std::size_t box) {
            return std::tuple(places_[box].memory, places_[box].offset, box);
        };
        std::ranges::sort(order, {}, place);
        for (const std::size_t box : order) {
            if (auto alone = compare(box); !alone) return std::unexpected(alone.error());
        }
        for (const LayoutMemory& memory : layout_.memories()) {
            use_.padding_elements += memory.elements;
        }
        use_.padding_elements -= elements_;
        use_.steps = steps_max - steps_;
        return std::move(use_);
    }

  private:
    struct Place {
        std::uint32_t memory;
        std::uint64_t offset;
        std::uint64_t last;
        std::size_t first_dim;
        std::size_t dims;
    };

    Result<void> place_all() {
        places_.reserve(layout_.boxes());
        for (std::size_t i = 0; i < layout_.boxes(); i++) {
            const LayoutBox box = layout_.box(i);
            const std::vector<Step> dims = dims_of(box.length, box.strides);
            if (!is_nested(dims)) {
                return refused(Errc::unsupported,
                               fmt::format("tensor '{}': elements of the engine's box {} share "
                                           "memory, or their strides cross",
                                           name_of(i), layout_.text_of(i)));
            }
            const Strided strided{box.offset, dims};
            places_.push_back({box.memory, box.offset, strided.last(), dims_.size(), dims.size()});
            dims_.insert(dims_.end(), dims.begin(), dims.end());
        }
        return {};
    }

    [[nodiscard]] const std::string& name_of(std::size_t box) const {
        return layout_.tensors()[layout_.box(box).tensor].name;
    }

    [[nodiscard]] Strided strided(std::size_t box) const {
        const Place& place = places_[box];
        return {place.offset, std::span(dims_).subspan(place.first_dim, place.dims)};
    }

    // Boxes whose rows have one pitch and do not cross it, by their first column.
    struct Columns {
        std::multimap<std::uint64_t, std::size_t> boxes;
        std::uint64_t reach = 0;  // the largest of a row
        std::uint64_t last = 0;   // the largest of a box
    };

    // The pitch of its rows; 0 if they cross it.
    [[nodiscard]] static std::uint64_t pitch_of(const Strided& box) {
        const std::uint64_t pitch = box.dims.empty() ? 1 : box.dims[0].stride;
        return box.offset % pitch + row_reach(box) < pitch ? pitch : 0;
    }

    [[nodiscard]] static std::uint64_t row_reach(const Strided& box) {
        return box.dims.empty() ? 0 : Strided{0, box.dims.subspan(1)}.reach();
    }

    // Compares a box with those before it, in the order of their places, that reach so far.
    Result<void> compare(std::size_t box) {
        const Place& place = places_[box];
        const Strided elements = strided(box);
        if (place.memory != memory_) active_.clear();
        memory_ = place.memory;
        std::erase_if(active_, [&](const auto& one) { return one.second.last < place.offset; });
        const std::uint64_t pitch = pitch_of(elements);
        for (auto& [other_pitch, columns] : active_) {
            const bool alike = pitch != 0 && pitch == other_pitch;
            if (auto alone = compare(box, columns, alike ? pitch : 0); !alone) return alone;
            if (use_.repeated[box]) return {};
        }
        Columns& columns = active_[pitch];
        columns.boxes.emplace(pitch == 0 ? 0 : place.offset % pitch, box);
        columns.reach = std::max(columns.reach, row_reach(elements));
        columns.last = std::max(columns.last, place.last);
        std::uint64_t count = 1;
        for (const Step& dim : elements.dims) count *= dim.extent;
        elements_ += count;
        return {};
    }

    // With those in whose columns it may be, if it has their pitch; with all if `pitch` is 0.
    Result<void> compare(std::size_t box, Columns& columns, std::uint64_t pitch) {
        const Place& place = places_[box];
        auto at = columns.boxes.begin();
        std::uint64_t last_column = std::numeric_limits<std::uint64_t>::max();
        if (pitch != 0) {
            const std::uint64_t column = place.offset % pitch;
            at = columns.boxes.lower_bound(column - std::min(column, columns.reach));
            last_column = column + row_reach(strided(box));
        }
        while (at != columns.boxes.end() && at->first <= last_column) {
            const std::size_t other = at->second;
            if (steps_ > 0) steps_--;
            if (places_[other].last < place.offset) {
                at = columns.boxes.erase(at);
                continue;
            }
            ++at;
            if (is_same(box, other)) {
                use_.repeated[box] = true;
                return {};
            }
            const std::optional<bool> met =
                steps_ == 0 ? std::nullopt : meet(strided(other), strided(box), steps_);
            if (!met || *met) return shared(box, other, met.has_value());
        }
        return {};
    }

    [[nodiscard]] std::unexpected<Error> shared(std::size_t box, std::size_t other,
                                                bool certain) const {
        return refused(
            certain ? Errc::layout_mismatch : Errc::unsupported,
            fmt::format("tensor '{}': the engine's box {} {} box {} of tensor '{}'", name_of(box),
                        layout_.text_of(box),
                        certain ? "shares memory with"
                                : "lies too interleaved to be checked between the rows of",
                        layout_.text_of(other), name_of(other)));
    }

    [[nodiscard]] bool is_same(std::size_t a, std::size_t b) const {
        const LayoutBox one = layout_.box(a);
        const LayoutBox other = layout_.box(b);
        if (values_[one.tensor] != values_[other.tensor] || one.offset != other.offset ||
            !std::ranges::equal(one.start, other.start) ||
            !std::ranges::equal(one.length, other.length)) {
            return false;
        }
        for (std::size_t i = 0; i < one.length.size(); i++) {
            // The stride of a single element says nothing.
            if (one.length[i] > 1 && one.strides[i] != other.strides[i]) return false;
        }
        return true;
    }

    const WeightLayout& layout_;
    std::span<const std::uint32_t> values_;
    std::vector<Place> places_;
    std::vector<Step> dims_;
    std::uint32_t memory_ = 0;
    std::map<std::uint64_t, Columns> active_;  // by pitch
    std::uint64_t elements_ = 0;
    std::uint64_t steps_ = steps_max;
    MemoryUse use_;
};

}  // namespace

Result<MemoryUse> check_shared_memory(const WeightLayout& layout,
                                      std::span<const std::uint32_t> values) {
    return MemoryCheck(layout, values).run();
}

}  // namespace rollring::shards
