#include "view_model.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "host_mover.hpp"

namespace rollring::test {
namespace {

using Dice = std::mt19937_64;
using Shape = std::vector<std::int64_t>;

std::uint64_t below(std::uint64_t end, Dice& dice) {
    return dice() % end;
}

std::uint64_t count(const Shape& shape) {
    std::uint64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= static_cast<std::uint64_t>(extent);
    return elements;
}

// Calls each(index) for all indices of a shape in row-major order.
template <class Each>
void for_each_index(const Shape& shape, const Each& each) {
    Shape index(shape.size());
    for (std::uint64_t left = count(shape); left > 0; left--) {
        each(index);
        for (std::size_t dim = shape.size(); dim-- > 0;) {
            if (++index[dim] < shape[dim]) break;
            index[dim] = 0;
        }
    }
}

struct Chain {
    Shape shape;
    TensorView view;
    std::vector<std::uint64_t> elements;  // numbers of the published ones, in row-major order

    explicit Chain(const Shape& published) : shape(published), view{0, Shape(published.size())} {
        std::int64_t stride = 1;
        for (std::size_t dim = shape.size(); dim-- > 0;) {
            view.strides[dim] = stride;
            stride *= shape[dim];
        }
        elements.resize(count(shape));
        std::iota(elements.begin(), elements.end(), 0);
    }

    // A new shape, whose element at `index` is the one that was at old(index).
    template <class Old>
    void remake(Shape made, const Old& old) {
        std::vector<std::uint64_t> taken;
        for_each_index(made, [&](const Shape& index) {
            const Shape at = old(index);
            std::uint64_t place = 0;
            for (std::size_t dim = 0; dim < shape.size(); dim++) {
                place = place * static_cast<std::uint64_t>(shape[dim]) +
                        static_cast<std::uint64_t>(at[dim]);
            }
            taken.push_back(elements[place]);
        });
        elements = std::move(taken);
        shape = std::move(made);
    }

    void narrow(std::size_t dim, std::int64_t first, std::int64_t extent) {
        view.offset += static_cast<std::uint64_t>(first * view.strides[dim]);
        Shape made = shape;
        made[dim] = extent;
        remake(std::move(made), [&](Shape index) {
            index[dim] += first;
            return index;
        });
    }
    void every(std::size_t dim, std::int64_t step) {
        view.strides[dim] *= step;
        Shape made = shape;
        made[dim] = (shape[dim] + step - 1) / step;
        remake(std::move(made), [&](Shape index) {
            index[dim] *= step;
            return index;
        });
    }
    void swap(std::size_t one, std::size_t other) {
        std::swap(view.strides[one], view.strides[other]);
        Shape made = shape;
        std::swap(made[one], made[other]);
        remake(std::move(made), [&](Shape index) {
            std::swap(index[one], index[other]);
            return index;
        });
    }
    void split(std::size_t dim, std::int64_t inner) {
        const auto at = static_cast<std::ptrdiff_t>(dim);
        const std::int64_t stride = view.strides[dim];
        view.strides[dim] = stride * inner;
        view.strides.insert(view.strides.begin() + at + 1, stride);
        shape[dim] /= inner;
        shape.insert(shape.begin() + at + 1, inner);
    }
    void repeat(std::size_t dim, std::int64_t times) {
        const auto at = static_cast<std::ptrdiff_t>(dim);
        view.strides.insert(view.strides.begin() + at, 0);
        Shape made = shape;
        made.insert(made.begin() + at, times);
        remake(std::move(made), [&](Shape index) {
            index.erase(index.begin() + at);
            return index;
        });
    }

    void step(Dice& dice) {
        constexpr std::size_t dims_max = 5;
        const std::size_t dim = below(shape.size(), dice);
        const std::int64_t extent = shape[dim];
        const auto any = [&](std::int64_t end) {
            return static_cast<std::int64_t>(below(static_cast<std::uint64_t>(end), dice));
        };
        switch (below(8, dice)) {
            case 0:
            case 1:
            case 2: {
                const std::int64_t first = any(extent);
                return narrow(dim, first, 1 + any(extent - first));
            }
            case 3:
                return every(dim, 1 + any(3));
            case 4:
            case 5:
                return swap(dim, below(shape.size(), dice));
            case 6:
                for (const std::int64_t inner : {2, 8, 3, 5}) {
                    if (shape.size() < dims_max && extent % inner == 0) return split(dim, inner);
                }
                return;
            default:
                if (shape.size() < dims_max && elements.size() < 2000) repeat(dim, 1 + any(3));
        }
    }
};

// Rows and columns of about this many elements.
Shape random_shape(const ViewSizes& sizes, Dice& dice) {
    Shape shape(1 + below(3, dice));
    std::uint64_t room = 1 + below(sizes.elements_max, dice);
    for (std::size_t dim = shape.size(); dim-- > 0;) {
        std::uint64_t extent = dim == 0 ? room : 1 + below(std::min(room, sizes.extent_max), dice);
        const bool row = dim + 1 == shape.size();
        if (row)
            extent = std::max(extent / sizes.row_multiple, std::uint64_t{1}) * sizes.row_multiple;
        shape[dim] = static_cast<std::int64_t>(extent);
        room = std::max<std::uint64_t>(1, room / extent);
    }
    return shape;
}

// Strides of a tensor that lies in memory in any order of its dimensions, with gaps; its elements.
std::uint64_t random_strides(WeightTensor& tensor, Dice& dice) {
    const std::size_t dims = tensor.shape.size();
    std::vector<std::size_t> order(dims);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::reverse(order);
    if (below(4, dice) == 0) std::ranges::shuffle(order, dice);
    tensor.strides.assign(dims, 0);
    std::int64_t stride = below(8, dice) == 0 ? 2 : 1;
    for (const std::size_t dim : order) {
        tensor.strides[dim] = stride;
        stride *= tensor.shape[dim];
        if (below(3, dice) == 0) stride += 8 * static_cast<std::int64_t>(1 + below(2, dice));
    }
    return static_cast<std::uint64_t>(stride);
}

class Maker {
  public:
    Maker(const ViewSizes& sizes, Dice& dice) : sizes_(sizes), dice_(dice) {}

    ViewCase make() {
        for (int i = 0; i < 4; i++) publish(i);
        pack();
        for (std::size_t i = 0; i < sizes_.views; i++) take(below(4, dice_), true);
        take(4, false);
        made_.arena.resize(made_.arena.size() + 64);
        for (std::byte& byte : made_.arena) byte = static_cast<std::byte>(dice_());
        made_.wanted = made_.arena;
        for (std::size_t i = 0; i < made_.into.size(); i++) expect(made_.into[i], takes_[i]);
        return std::move(made_);
    }

  private:
    struct Taken {
        std::size_t tensor;
        std::vector<std::uint64_t> elements;
    };

    void publish(int number) {
        static constexpr DType dtypes[] = {DType{1, 8}, dtype_bf16, dtype_f32, dtype_f64};
        WeightTensor tensor{.name = "w" + std::to_string(number),
                            .dtype = dtypes[below(4, dice_)],
                            .shape = random_shape(sizes_, dice_)};
        auto& bytes = made_.memory.emplace_back(count(tensor.shape) * tensor.dtype.bytes());
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice_());
        tensor.data = bytes.data();
        made_.published.push_back(tensor);
        if (number != 3) return;
        tensor.name = "tied";  // and taken without a view
        tensor.tied = true;
        made_.published.push_back(tensor);
    }

    void pack() {
        auto packing = weights::pack_tensors(made_.published, sizes_.slot_bytes);
        made_.manifest.packing = std::move(*packing);
        device::HostMover mover;
        for (const weights::Part& part : made_.manifest.packing.parts) {
            auto plan =
                mover.plan(weights::pack_jobs(made_.manifest.packing, part, made_.published));
            auto& slot = made_.slots.emplace_back(made_.manifest.packing.slot_bytes);
            static_cast<void>((*plan)->pack(slot.data(), {}, {}));
        }
    }

    void take(std::size_t number, bool with_view) {
        const WeightTensor& from = made_.published[number];
        Chain chain(from.shape);
        if (with_view) {
            for (std::uint64_t steps = below(6, dice_); steps > 0; steps--) chain.step(dice_);
        }
        WeightTensor tensor{.name = from.name, .dtype = from.dtype, .shape = chain.shape};
        if (with_view) tensor.view = chain.view;
        std::uint64_t elements = chain.elements.size();
        if (below(3, dice_) > 0) elements = random_strides(tensor, dice_);
        // As allocators place tensors, or any fused one its parts, or anyhow.
        std::size_t at = (made_.arena.size() + 63) / 32 * 32;
        const std::uint64_t how = below(4, dice_);
        if (how == 0) at += below(16, dice_) * from.dtype.bytes();
        if (how == 1) at += below(16, dice_);
        tensor.data = reinterpret_cast<void*>(at);
        made_.arena.resize(at + elements * from.dtype.bytes());
        made_.into.push_back(std::move(tensor));
        takes_.push_back({number, std::move(chain.elements)});
    }

    void expect(const WeightTensor& tensor, const Taken& taken) {
        const std::size_t bytes = tensor.dtype.bytes();
        const std::size_t start = reinterpret_cast<std::size_t>(tensor.data);
        std::size_t next = 0;
        for_each_index(tensor.shape, [&](const Shape& index) {
            std::size_t place = next;
            if (!tensor.strides.empty()) {
                place = 0;
                for (std::size_t dim = 0; dim < index.size(); dim++) {
                    place += static_cast<std::size_t>(index[dim] * tensor.strides[dim]);
                }
            }
            const std::byte* from = made_.memory[taken.tensor == 4 ? 3 : taken.tensor].data() +
                                    taken.elements[next] * bytes;
            std::memcpy(made_.wanted.data() + start + place * bytes, from, bytes);
            next++;
        });
    }

    const ViewSizes& sizes_;
    Dice& dice_;
    ViewCase made_;
    std::vector<Taken> takes_;
};

}  // namespace

std::vector<WeightTensor> ViewCase::placed(std::byte* at) const {
    std::vector<WeightTensor> made = into;
    for (WeightTensor& tensor : made) tensor.data = at + reinterpret_cast<std::size_t>(tensor.data);
    return made;
}

ViewCase random_views(const ViewSizes& sizes, std::mt19937_64& dice) {
    return Maker(sizes, dice).make();
}

}  // namespace rollring::test
