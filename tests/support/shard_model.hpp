#pragma once
// A model for tests that N trainer ranks shard by rows, as FSDP does, and M engine ranks hold in
// parts of another cut: a padded embedding, a fused parameter with replicated rows, columns. The
// values follow from the version, the tensor and the element.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "rollring/weight_layout.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {

struct ModelTensor {
    const char* name;
    std::int64_t rows;
    std::int64_t columns;
};
// Rows that 2, 4 and 8 ranks do not divide, and fewer rows than ranks.
inline constexpr ModelTensor model_tensors[] = {
    {"embed", 13, 6}, {"q", 16, 5}, {"k", 2, 5}, {"down", 7, 16}};
enum ModelName : std::uint32_t { embed, q, k, down };

inline std::uint16_t model_value(std::int64_t version, std::uint32_t tensor, std::int64_t element) {
    return static_cast<std::uint16_t>(version * 7919 + std::int64_t{tensor} * 1031 + element * 3 +
                                      1);
}

// Memory of one rank with its layout.
class ShardSide {
  public:
    // Each version changes one of `period` elements.
    explicit ShardSide(std::int64_t period) : period_(period) {}
    [[nodiscard]] std::vector<std::byte> layout() const { return layout_.to_bytes(); }
    [[nodiscard]] std::vector<WeightTensor>& list() { return list_; }

  protected:
    struct Block {
        std::uint32_t tensor;
        std::int64_t row, column, rows, columns;
        std::size_t memory;
        std::int64_t offset;
    };

    // Memory of a rank, in which boxes will lie.
    std::size_t add_memory(std::uint32_t rank, const std::string& name, std::int64_t elements) {
        memory_.emplace_back(static_cast<std::size_t>(elements), untouched);
        list_.push_back(
            {.name = name, .dtype = dtype_u16, .shape = {elements}, .data = memory_.back().data()});
        static_cast<void>(layout_.add_memory({.rank = rank,
                                              .name = name,
                                              .dtype = dtype_u16,
                                              .elements = static_cast<std::uint64_t>(elements)}));
        return memory_.size() - 1;
    }
    void add_block(const Block& block) {
        if (block.rows <= 0 || block.columns <= 0) return;
        const ModelTensor& tensor = model_tensors[block.tensor];
        const std::int64_t shape[] = {tensor.rows, tensor.columns};
        const std::int64_t start[] = {block.row, block.column};
        const std::int64_t length[] = {block.rows, block.columns};
        const std::int64_t strides[] = {block.columns, 1};
        const auto number = layout_.add_tensor(tensor.name, shape);
        const auto added = layout_.add_box({.tensor = *number,
                                            .memory = static_cast<std::uint32_t>(block.memory),
                                            .offset = static_cast<std::uint64_t>(block.offset),
                                            .start = start,
                                            .length = length,
                                            .strides = strides});
        if (added) blocks_.push_back(block);
    }
    // Calls visit(element of the memory, value) for each element of the blocks.
    template <class Visit>
    void for_each(std::int64_t version, const Visit& visit) {
        for (const Block& block : blocks_) {
            for (std::int64_t row = 0; row < block.rows; row++) {
                for (std::int64_t column = 0; column < block.columns; column++) {
                    const std::int64_t element =
                        (block.row + row) * model_tensors[block.tensor].columns + block.column +
                        column;
                    visit(memory_[block.memory][static_cast<std::size_t>(
                              block.offset + row * block.columns + column)],
                          model_value(last_change(version, element), block.tensor, element));
                }
            }
        }
    }

    // The last of the versions up to this one that changes an element.
    [[nodiscard]] std::int64_t last_change(std::int64_t version, std::int64_t element) const {
        return version - (version + element) % period_;
    }

    static constexpr std::uint16_t untouched = 0xabcd;
    std::int64_t period_;
    WeightLayout layout_;
    std::vector<WeightTensor> list_;
    std::vector<std::vector<std::uint16_t>> memory_;
    std::vector<Block> blocks_;
};

class TrainerShard : public ShardSide {
  public:
    TrainerShard(std::uint32_t rank, std::uint32_t ranks, std::int64_t period = 1)
        : ShardSide(period) {
        memory_.reserve(std::size(model_tensors));
        for (std::uint32_t tensor = 0; tensor < std::size(model_tensors); tensor++) {
            const auto [name, rows, columns] = model_tensors[tensor];
            const std::int64_t chunk = (rows + ranks - 1) / ranks;  // as torch.chunk
            const std::int64_t begin = std::min(chunk * rank, rows);
            const std::int64_t held = std::min(chunk, rows - begin);
            if (held == 0) continue;
            const std::size_t memory = add_memory(rank, name, held * columns);
            add_block({tensor, begin, 0, held, columns, memory, 0});
        }
    }
    void fill(std::int64_t version) {
        for_each(version, [](std::uint16_t& at, std::uint16_t value) { at = value; });
    }
};

class EngineShard : public ShardSide {
  public:
    EngineShard(std::uint32_t rank, std::uint32_t ranks, std::int64_t period = 1)
        : ShardSide(period) {
        memory_.reserve(3);
        const std::int64_t all = ranks;
        const std::int64_t rows = 16 / all;  // of the padded embedding, and of q
        const std::int64_t first = rows * rank;
        const std::size_t padded = add_memory(rank, "embed", rows * 6);
        add_block({embed, std::min<std::int64_t>(first, 13), 0,
                   std::clamp<std::int64_t>(13 - first, 0, rows), 6, padded, 0});
        const std::int64_t heads = std::max<std::int64_t>(2 / all, 1);
        const std::size_t fused = add_memory(rank, "qk", (rows + heads) * 5 + 2);
        add_block({q, first, 0, rows, 5, fused, 2});
        add_block({k, std::int64_t{rank} * 2 / all, 0, heads, 5, fused, 2 + rows * 5});
        const std::size_t part = add_memory(rank, "down", 7 * (16 / all));
        add_block({down, 0, rank * (16 / all), 7, 16 / all, part, 0});
    }
    // As at first.
    void forget() {
        for (auto& memory : memory_) std::ranges::fill(memory, untouched);
    }
    // Whether it has this version as a whole; -1: nothing was ever written. Padding stays as it
    // was.
    [[nodiscard]] bool holds(std::int64_t version) {
        std::size_t written = 0;
        std::size_t right = 0;
        for_each(version, [&](std::uint16_t& at, std::uint16_t value) {
            right += at == (version < 0 ? untouched : value) ? 1 : 0;
            written++;
        });
        std::size_t padding = 0;
        std::size_t all = 0;
        for (const auto& memory : memory_) {
            all += memory.size();
            padding += static_cast<std::size_t>(std::ranges::count(memory, untouched));
        }
        // A value may be as the padding by chance.
        return right == written && padding >= all - written;
    }
};

}  // namespace rollring::test
