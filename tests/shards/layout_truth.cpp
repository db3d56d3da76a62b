#include <algorithm>
#include <utility>

#include "random_layouts.hpp"

namespace rollring::test {
namespace {

using Numbers = std::vector<std::int64_t>;

// The next index within these lengths, the last dimension fastest; false: that was the last one.
bool advance(Numbers& at, std::span<const std::int64_t> length) {
    for (std::size_t dim = at.size(); dim > 0; dim--) {
        at[dim - 1]++;
        if (at[dim - 1] < length[dim - 1]) return true;
        at[dim - 1] = 0;
    }
    return false;
}

// Visits a box element by element: its index in the tensor, and its number in the memory.
template <class Visit>
void for_each(const WeightLayout& layout, const LayoutBox& box, const Visit& visit) {
    const Numbers& shape = layout.tensors()[box.tensor].shape;
    Numbers at(shape.size(), 0);
    for (;;) {
        std::uint64_t index = 0;
        std::uint64_t element = box.offset;
        for (std::size_t dim = 0; dim < at.size(); dim++) {
            index = index * shape[dim] + static_cast<std::uint64_t>(box.start[dim] + at[dim]);
            element += static_cast<std::uint64_t>(at[dim] * box.strides[dim]);
        }
        visit(index, element);
        if (!advance(at, box.length)) return;
    }
}

bool same_box(const LayoutBox& a, const LayoutBox& b) {
    bool same = a.memory == b.memory && a.offset == b.offset &&
                std::ranges::equal(a.start, b.start) && std::ranges::equal(a.length, b.length);
    for (std::size_t dim = 0; same && dim < a.length.size(); dim++) {
        same = a.length[dim] == 1 || a.strides[dim] == b.strides[dim];
    }
    return same;
}

bool converts(DType from, DType to) {
    return from == to || (from == dtype_f32 && (to == dtype_bf16 || to == dtype_f16));
}

class Reference {
  public:
    explicit Reference(const LayoutCase& given) : given_(given) {}

    Truth find() {
        read_trainer();
        truth_.wants.resize(given_.to.memories().size());
        writers_.resize(given_.to.memories().size());
        for (std::size_t i = 0; i < given_.to.memories().size(); i++) {
            truth_.wants[i].resize(given_.to.memories()[i].elements);
            writers_[i].assign(given_.to.memories()[i].elements, -1);
        }
        for (std::uint32_t i = 0; i < given_.to.tensors().size(); i++) {
            const std::int64_t tie = given_.to.tensors()[i].tied_to;
            const std::int64_t values = values_of(i);
            const bool tied_alike = tie < 0 || values_of(static_cast<std::uint32_t>(tie)) == values;
            if (values < 0 || !tied_alike) blame(i);
        }
        for (std::size_t i = 0; i < given_.to.boxes(); i++) read_engine(i);
        return std::move(truth_);
    }

  private:
    void blame(std::uint32_t tensor) {
        truth_.fits = false;
        truth_.culprits.push_back("tensor '" + given_.to.tensors()[tensor].name + "'");
    }

    [[nodiscard]] std::int64_t found(const std::string& name, const Numbers& shape) const {
        for (std::size_t i = 0; i < given_.from.tensors().size(); i++) {
            const LayoutTensor& tensor = given_.from.tensors()[i];
            if (tensor.name != name || tensor.shape != shape) continue;
            return tensor.tied_to < 0 ? static_cast<std::int64_t>(i) : tensor.tied_to;
        }
        return -1;
    }
    [[nodiscard]] std::int64_t values_of(std::uint32_t engine_tensor) const {
        const LayoutTensor& tensor = given_.to.tensors()[engine_tensor];
        const std::int64_t own = found(tensor.name, tensor.shape);
        if (own >= 0 || tensor.tied_to < 0) return own;
        return found(given_.to.tensors()[tensor.tied_to].name, tensor.shape);
    }

    void read_trainer() {
        const WeightLayout& from = given_.from;
        truth_.has.resize(from.memories().size());
        for (std::size_t i = 0; i < from.memories().size(); i++) {
            truth_.has[i].resize(from.memories()[i].elements);
        }
        holders_.resize(from.tensors().size());
        for (std::size_t i = 0; i < from.boxes(); i++) {
            const LayoutBox box = from.box(i);
            const std::int64_t tie = from.tensors()[box.tensor].tied_to;
            const std::int64_t values = tie < 0 ? box.tensor : tie;
            for_each(from, box, [&](std::uint64_t index, std::uint64_t element) {
                truth_.has[box.memory][element] = {values, index};
                auto& of_values = holders_[values];
                of_values.resize(std::max(of_values.size(), index + 1));
                of_values[index].push_back(box.memory);
            });
        }
    }

    void read_engine(std::size_t number) {
        const LayoutBox box = given_.to.box(number);
        const std::int64_t values = values_of(box.tensor);
        if (values < 0) return;
        for_each(given_.to, box, [&](std::uint64_t index, std::uint64_t element) {
            const std::int64_t before = writers_[box.memory][element];
            if (before >= 0) {
                const LayoutBox other = given_.to.box(before);
                if (!same_box(box, other) || values_of(other.tensor) != values ||
                    std::cmp_equal(before, number)) {
                    blame(box.tensor);
                    blame(other.tensor);
                }
            }
            writers_[box.memory][element] = static_cast<std::int64_t>(number);
            truth_.wants[box.memory][element] = {values, index};
            const auto& of_values = holders_[values];
            const bool held = index < of_values.size() && !of_values[index].empty();
            const bool converted =
                held && std::ranges::any_of(of_values[index], [&](std::uint32_t memory) {
                    return converts(given_.from.memories()[memory].dtype,
                                    given_.to.memories()[box.memory].dtype);
                });
            if (!converted) blame(box.tensor);
        });
    }

    const LayoutCase& given_;
    Truth truth_;
    std::vector<std::vector<std::vector<std::uint32_t>>> holders_;  // by values and index: memories
    std::vector<std::vector<std::int64_t>> writers_;                // by engine's element: box
};

}  // namespace

Truth truth_of(const LayoutCase& given) {
    return Reference(given).find();
}

std::optional<Memories> run_plan(const WeightPlan& plan, const LayoutCase& given,
                                 const Memories& has) {
    Memories made;
    for (const LayoutMemory& memory : given.to.memories()) made.emplace_back(memory.elements);
    for (std::size_t i = 0; i < plan.copies(); i++) {
        const PlanCopy copy = plan.copy(i);
        Numbers at(copy.extents.size(), 0);
        for (std::uint64_t n = 0; n < copy.elements(); n++) {
            std::uint64_t from = copy.from_offset;
            std::uint64_t to = copy.to_offset;
            for (std::size_t dim = 0; dim < at.size(); dim++) {
                from += static_cast<std::uint64_t>(at[dim] * copy.from_strides[dim]);
                to += static_cast<std::uint64_t>(at[dim] * copy.to_strides[dim]);
            }
            if (from >= has[copy.from].size() || to >= made[copy.to].size()) return {};
            if (made[copy.to][to].values >= 0) return {};
            made[copy.to][to] = has[copy.from][from];
            static_cast<void>(advance(at, copy.extents));
        }
    }
    return made;
}

}  // namespace rollring::test
