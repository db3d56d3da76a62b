#pragma once
// Where the elements of tensors lie, over the ranks of a trainer or of an engine: as boxes of
// tensors, each in the memory of a rank. A layout is data, whatever rule (FSDP, tensor or expert
// parallelism) it comes from.
//
//   WeightLayout engine;                                   // of two ranks
//   const std::int64_t shape[] = {512, 256};
//   const auto q = engine.add_tensor("q_proj.weight", shape);
//   const auto qkv = engine.add_memory({.rank = 1, .name = "qkv.weight", .dtype = dtype_bf16,
//                                       .elements = 384 * 256});
//   const std::int64_t start[] = {256, 0}, length[] = {256, 256}, strides[] = {256, 1};
//   if (q && qkv) ... engine.add_box({*q, *qkv, 0, start, length, strides});
//
// Nothing throws. One thread at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/version.hpp"

namespace rollring {

// A tensor that both sides know by name, wherever its elements lie.
struct LayoutTensor {
    std::string name;                 // UTF-8, 1 to 1023 bytes
    std::vector<std::int64_t> shape;  // of the whole tensor
    // Index of an earlier tensor of the same values (tied embeddings); -1: it has values of its
    // own.
    std::int64_t tied_to = -1;
};

// Memory of one rank: a shard of a trainer, a parameter of an engine.
struct LayoutMemory {
    std::uint32_t rank = 0;
    std::string name;            // 1 to 1023 bytes, unique in its rank
    DType dtype{};               // of its elements
    std::uint64_t elements = 0;  // from its first one to its last one, padding included
};

// A box of a tensor's elements, from `start` and `length` long in each dimension, in a memory:
// element start + (i, j, ...) is the element number offset + i * strides[0] + j * strides[1] + ...
// of that memory.
struct LayoutBox {
    std::uint32_t tensor = 0;  // an index into tensors()
    std::uint32_t memory = 0;  // an index into memories()
    std::uint64_t offset = 0;
    // One number for each dimension of the tensor.
    std::span<const std::int64_t> start;
    std::span<const std::int64_t> length;
    std::span<const std::int64_t> strides;  // in elements, none below zero
};

class ROLLRING_API WeightLayout {
  public:
    // Adds a tensor, or finds it by its name. Errors: layout_mismatch (known with another shape or
    // tie), invalid_argument (a name, a shape, or `tied_to`, which must be an earlier tensor of the
    // same shape that is not tied itself).
    Result<std::uint32_t> add_tensor(std::string_view name, std::span<const std::int64_t> shape,
                                     std::int64_t tied_to = -1);
    // Error: invalid_argument (the rank has a memory of that name, or a field is out of range).
    Result<std::uint32_t> add_memory(const LayoutMemory& memory);
    // Copies it. A box without elements is checked, and not kept. Error: invalid_argument (it
    // exceeds its tensor or its memory; the text names both).
    Result<void> add_box(const LayoutBox& box);
    // Adds all of another layout, such as that of another rank. Errors: as the calls above; this
    // layout may then have a part of it.
    Result<void> add(const WeightLayout& other);

    [[nodiscard]] std::span<const LayoutTensor> tensors() const { return tensors_; }
    [[nodiscard]] std::span<const LayoutMemory> memories() const { return memories_; }
    [[nodiscard]] std::size_t boxes() const { return boxes_.size(); }
    // Its spans are valid until the next box is added.
    [[nodiscard]] LayoutBox box(std::size_t index) const;
    // "rank 1, 'qkv.weight': [256:512, 0:256]"
    [[nodiscard]] std::string text_of(std::size_t box) const;

    // One table of bytes; docs/shards.md has its format. from_bytes accepts any bytes, and checks
    // all of them. Errors: bad_manifest (names the field), abi_mismatch.
    [[nodiscard]] std::vector<std::byte> to_bytes() const;
    static Result<WeightLayout> from_bytes(std::span<const std::byte> bytes);
    // Of the table: 32 hexadecimal digits. Equal layouts that were built in the same order have
    // equal hashes.
    [[nodiscard]] std::string hash() const;

  private:
    struct Row {
        std::uint64_t offset;
        std::uint32_t tensor;
        std::uint32_t memory;
        std::uint64_t first_dim;  // start, length and strides follow each other from here
    };
    struct TextHash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const {
            return std::hash<std::string_view>{}(text);
        }
    };
    using Index = std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>>;

    std::vector<LayoutTensor> tensors_;
    std::vector<LayoutMemory> memories_;
    std::vector<Row> boxes_;
    std::vector<std::int64_t> dims_;
    Index tensor_index_;
    Index memory_index_;  // by rank and name
};

}  // namespace rollring
