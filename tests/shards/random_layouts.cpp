#include "random_layouts.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace rollring::test {
namespace {

using Numbers = std::vector<std::int64_t>;

struct Box {
    Numbers start;
    Numbers length;
};

template <class T>
T must(Result<T> result) {
    if (!result) throw std::logic_error(result.error().to_string());
    return *result;
}
void must(const Result<void>& result) {
    if (!result) throw std::logic_error(result.error().to_string());
}

// A tensor of the world before it is spread over ranks.
struct Tensor {
    std::string name;
    Numbers shape;
    DType from_dtype;
    DType to_dtype;
    std::int64_t tied_to = -1;
};

// One side: boxes by rank, then put into memories.
class Side {
  public:
    Side(std::mt19937_64& dice, const std::vector<Tensor>& tensors, bool engine,
         std::uint64_t ranks)
        : dice_(dice),
          tensors_(tensors),
          engine_(engine),
          ranks_(ranks != 0 ? ranks : 1 + roll(5)) {
        held_.resize(ranks_);
    }

    WeightLayout make() {
        for (const Tensor& tensor : tensors_) {
            must(layout_.add_tensor(tensor.name, tensor.shape, tensor.tied_to));
        }
        for (std::uint32_t i = 0; i < tensors_.size(); i++) spread(i);
        for (std::uint32_t rank = 0; rank < ranks_; rank++) place(rank);
        return std::move(layout_);
    }

  private:
    struct Held {
        std::uint32_t tensor;
        Box box;
    };

    std::uint64_t roll(std::uint64_t below) { return below == 0 ? 0 : dice_() % below; }

    void hold(std::uint64_t rank, std::uint32_t tensor, Box box) {
        if (std::ranges::find(box.length, 0) != box.length.end()) return;
        held_[rank].push_back({tensor, std::move(box)});
    }

    // As torch.chunk cuts a dimension: the last chunks may be short or empty.
    static Box chunk(Box box, std::size_t dim, std::int64_t of, std::int64_t at) {
        const std::int64_t size = (box.length[dim] + of - 1) / of;
        const std::int64_t begin = std::min(at * size, box.length[dim]);
        const std::int64_t end = std::min(begin + size, box.length[dim]);
        box.start[dim] += begin;
        box.length[dim] = end - begin;
        return box;
    }

    void spread(std::uint32_t tensor) {
        const Numbers& shape = tensors_[tensor].shape;
        const Box whole{Numbers(shape.size(), 0), shape};
        const auto ranks = static_cast<std::int64_t>(ranks_);
        const std::size_t dim = shape.empty() ? 0 : roll(shape.size());
        switch (shape.empty() ? 3 + roll(2) : roll(6)) {
            case 0:  // FSDP, tensor or expert parallelism: one dimension over all ranks
                for (std::int64_t i = 0; i < ranks; i++)
                    hold(i, tensor, chunk(whole, dim, ranks, i));
                break;
            case 1:  // HSDP, or replicated heads: replicas of shards
                for (std::int64_t i = 0; i < ranks; i++) {
                    hold(i, tensor, chunk(whole, dim, (ranks + 1) / 2, i / 2));
                }
                break;
            case 2: {  // two dimensions over a mesh
                const std::int64_t wide = ranks % 2 == 0 ? 2 : 1;
                for (std::int64_t i = 0; i < ranks; i++) {
                    const Box outer = chunk(whole, 0, ranks / wide, i / wide);
                    hold(i, tensor, chunk(outer, dim, wide, i % wide));
                }
                break;
            }
            case 3:  // replicated
                for (std::int64_t i = 0; i < ranks; i++) hold(i, tensor, whole);
                break;
            case 4:  // on one rank
                hold(roll(ranks_), tensor, whole);
                break;
            default:
                split(tensor, whole, 4);
        }
    }

    // Any cuts, each part on any rank, some on two.
    void split(std::uint32_t tensor, const Box& box, int depth) {
        const std::size_t dim = roll(box.length.size());
        if (depth == 0 || box.length[dim] < 2 || roll(4) == 0) {
            const std::uint64_t rank = roll(ranks_);
            hold(rank, tensor, box);
            // An engine has a box once.
            if (!engine_ && roll(4) == 0) hold((rank + 1) % ranks_, tensor, box);
            return;
        }
        const auto at = static_cast<std::int64_t>(1 + roll(box.length[dim] - 1));
        Box one = box;
        one.length[dim] = at;
        split(tensor, one, depth - 1);
        one.start[dim] += at;
        one.length[dim] = box.length[dim] - at;
        split(tensor, one, depth - 1);
    }

    [[nodiscard]] DType dtype(std::uint32_t tensor) const {
        return engine_ ? tensors_[tensor].to_dtype : tensors_[tensor].from_dtype;
    }

    // Puts the boxes of a rank into memories: one each, or several of a dtype together.
    void place(std::uint32_t rank) {
        std::vector<Held>& all = held_[rank];
        if (roll(3) == 0) std::ranges::shuffle(all, dice_);
        std::size_t memory = 0;
        for (std::size_t i = 0; i < all.size();) {
            std::size_t end = i + 1;
            const std::uint64_t together = roll(2) == 0 ? 1 : 1 + roll(6);
            while (end < all.size() && end - i < together &&
                   dtype(all[end].tensor) == dtype(all[i].tensor)) {
                end++;
            }
            place_together(rank, "m" + std::to_string(memory++),
                           std::span(all).subspan(i, end - i));
            i = end;
        }
    }

    void place_together(std::uint32_t rank, const std::string& name, std::span<const Held> boxes) {
        struct Placed {
            std::uint64_t offset;
            Numbers strides;
        };
        std::vector<Placed> placed;
        std::uint64_t end = roll(3) == 0 ? roll(7) : 0;
        const bool columns = boxes.size() > 1 && roll(3) == 0 && alike(boxes);
        if (columns) {  // beside each other in rows of one pitch
            const std::int64_t rows = boxes[0].box.length[0];
            std::int64_t pitch = static_cast<std::int64_t>(roll(2) * roll(5));
            for (const Held& one : boxes) pitch += count(one.box) / rows;
            std::int64_t column = 0;
            for (const Held& one : boxes) {
                Numbers strides = dense(one.box, 0, true);
                strides[0] = pitch;
                placed.push_back({end + static_cast<std::uint64_t>(column), strides});
                column += count(one.box) / rows;
            }
            end += static_cast<std::uint64_t>(rows * pitch);
        } else {
            for (const Held& one : boxes) {
                const std::uint64_t gap = roll(3) == 0 ? roll(4) : 0;
                const Numbers strides = dense(one.box, gap, roll(3) != 0);
                placed.push_back({end, strides});
                std::int64_t reach = 1;
                for (std::size_t dim = 0; dim < strides.size(); dim++) {
                    reach += (one.box.length[dim] - 1) * strides[dim];
                }
                end += static_cast<std::uint64_t>(reach) + (roll(4) == 0 ? roll(5) : 0);
            }
        }
        const std::uint32_t memory =
            must(layout_.add_memory({.rank = rank,
                                     .name = name,
                                     .dtype = dtype(boxes[0].tensor),
                                     .elements = end + roll(2) * roll(9)}));
        for (std::size_t i = 0; i < boxes.size(); i++) {
            must(layout_.add_box({.tensor = boxes[i].tensor,
                                  .memory = memory,
                                  .offset = placed[i].offset,
                                  .start = boxes[i].box.start,
                                  .length = boxes[i].box.length,
                                  .strides = placed[i].strides}));
        }
    }

    static std::int64_t count(const Box& box) {
        return std::accumulate(box.length.begin(), box.length.end(), std::int64_t{1},
                               std::multiplies<>());
    }
    static bool alike(std::span<const Held> boxes) {
        return std::ranges::all_of(boxes, [&](const Held& one) {
            return !one.box.length.empty() && one.box.length[0] == boxes[0].box.length[0];
        });
    }
    // Strides of a box whose rows are one after the other, with `gap` elements behind each row;
    // transposed unless `in_order`.
    Numbers dense(const Box& box, std::uint64_t gap, bool in_order) {
        std::vector<std::size_t> order(box.length.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        if (!in_order) std::ranges::shuffle(order, dice_);
        Numbers strides(order.size());
        std::int64_t stride = 1;
        for (std::size_t i = order.size(); i-- > 0;) {
            strides[order[i]] = stride;
            stride *= box.length[order[i]];
            if (i + 1 == order.size()) stride += static_cast<std::int64_t>(gap);
        }
        return strides;
    }

    std::mt19937_64& dice_;
    const std::vector<Tensor>& tensors_;
    bool engine_;
    std::uint64_t ranks_;
    std::vector<std::vector<Held>> held_;
    WeightLayout layout_;
};

std::vector<Tensor> random_tensors(std::mt19937_64& dice) {
    const std::pair<DType, DType> dtypes[] = {
        {dtype_u8, dtype_u8},    {dtype_bf16, dtype_bf16}, {dtype_f32, dtype_f32},
        {dtype_f32, dtype_bf16}, {dtype_f32, dtype_f16},   {dtype_f8_e4m3, dtype_f8_e4m3}};
    std::vector<Tensor> made;
    const std::size_t kinds = 1 + dice() % 4;
    for (std::size_t kind = 0; kind < kinds; kind++) {
        Numbers shape(dice() % 4);
        for (auto& extent : shape) extent = static_cast<std::int64_t>(1 + dice() % 9);
        if (!shape.empty() && dice() % 40 == 0) shape[0] = 0;
        const auto [from, to] = dtypes[dice() % std::size(dtypes)];
        // Experts: tensors of one shape.
        const std::size_t alike = dice() % 3 == 0 ? 2 + dice() % 5 : 1;
        for (std::size_t i = 0; i < alike; i++) {
            made.push_back({"t" + std::to_string(kind) + "." + std::to_string(i), shape, from, to});
        }
        if (dice() % 8 == 0) {
            Tensor tied = made.back();
            tied.tied_to = static_cast<std::int64_t>(made.size()) - 1;
            tied.name += ".tied";
            made.push_back(tied);
        }
    }
    return made;
}

// The same layout with one thing changed, which is a fault in most cases. Boxes of a trainer may
// share memory.
WeightLayout faulty(const WeightLayout& given, bool engine, std::mt19937_64& dice) {
    WeightLayout made;
    const std::uint64_t kind = dice() % 6;
    const std::size_t box_hit = given.boxes() == 0 ? 0 : dice() % given.boxes();
    const std::size_t memory_hit = given.memories().empty() ? 0 : dice() % given.memories().size();
    const std::size_t tensor_hit = dice() % given.tensors().size();
    for (std::size_t i = 0; i < given.tensors().size(); i++) {
        const LayoutTensor& tensor = given.tensors()[i];
        const bool hit = i == tensor_hit;
        const std::string name = hit && kind == 0 ? tensor.name + "?" : tensor.name;
        const std::int64_t tied = hit && kind == 1 ? -1 : tensor.tied_to;
        must(made.add_tensor(name, tensor.shape, tied));
    }
    for (std::size_t i = 0; i < given.memories().size(); i++) {
        LayoutMemory memory = given.memories()[i];
        if (i == memory_hit && kind == 2) memory.dtype = dtype_i64;
        must(made.add_memory(memory));
    }
    for (std::size_t i = 0; i < given.boxes(); i++) {
        LayoutBox box = given.box(i);
        Numbers strides(box.strides.begin(), box.strides.end());
        Numbers length(box.length.begin(), box.length.end());
        if (i == box_hit && kind == 3) continue;
        if (i == box_hit && kind == 4 && engine && box.offset > 0) box.offset--;
        if (i == box_hit && kind == 5 && !length.empty()) length[dice() % length.size()]--;
        box.strides = strides;
        box.length = length;
        must(made.add_box(box));
    }
    return made;
}

}  // namespace

LayoutCase random_layouts(std::mt19937_64& dice, std::uint64_t from_ranks, std::uint64_t to_ranks) {
    const std::vector<Tensor> tensors = random_tensors(dice);
    LayoutCase made;
    made.from = Side(dice, tensors, false, from_ranks).make();
    made.to = Side(dice, tensors, true, to_ranks).make();
    if (dice() % 3 == 0) made.to = faulty(made.to, true, dice);
    if (dice() % 6 == 0) made.from = faulty(made.from, false, dice);
    if (dice() % 2 == 0) {
        for (std::uint32_t i = 0; i < 8; i++) {
            made.options.from_devices.push_back(static_cast<std::uint32_t>(dice() % 4));
            made.options.to_devices.push_back(static_cast<std::uint32_t>(dice() % 4));
        }
    }
    return made;
}

}  // namespace rollring::test
