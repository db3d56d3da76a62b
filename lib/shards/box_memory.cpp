#include "box_memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "strided.hpp"

namespace rollring::shards {
namespace {

// Of one layout: about a second.
constexpr std::uint64_t steps_max = std::uint64_t{1} << 24;

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

    // Compares a box with those before it, in the order of their places, that reach so far.
    Result<void> compare(std::size_t box) {
        const Place& place = places_[box];
        std::erase_if(active_, [&](std::size_t other) {
            return places_[other].memory != place.memory || places_[other].last < place.offset;
        });
        for (const std::size_t other : active_) {
            if (is_same(box, other)) {
                use_.repeated[box] = true;
                return {};
            }
            const std::optional<bool> met = meet(strided(other), strided(box), steps_);
            if (met && !*met) continue;
            return refused(
                met ? Errc::layout_mismatch : Errc::unsupported,
                fmt::format("tensor '{}': the engine's box {} {} box {} of tensor '{}'",
                            name_of(box), layout_.text_of(box),
                            met ? "shares memory with"
                                : "lies too interleaved to be checked between the rows of",
                            layout_.text_of(other), name_of(other)));
        }
        active_.push_back(box);
        std::uint64_t elements = 1;
        for (const Step& dim : strided(box).dims) elements *= dim.extent;
        elements_ += elements;
        return {};
    }

    [[nodiscard]] bool is_same(std::size_t a, std::size_t b) const {
        const LayoutBox one = layout_.box(a);
        const LayoutBox other = layout_.box(b);
        return values_[one.tensor] == values_[other.tensor] && one.offset == other.offset &&
               std::ranges::equal(one.start, other.start) &&
               std::ranges::equal(one.length, other.length) &&
               std::ranges::equal(one.strides, other.strides);
    }

    const WeightLayout& layout_;
    std::span<const std::uint32_t> values_;
    std::vector<Place> places_;
    std::vector<Step> dims_;
    std::vector<std::size_t> active_;
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
