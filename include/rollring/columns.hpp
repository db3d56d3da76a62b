#pragma once
// A column of all sequences of a batch as one array, written into memory of the caller's: packed,
// end to end, or padded to one length. For training code that wants a tensor a batch.
//
//   extern const Sequences& batch;               // a Batch as next_batch() filled it, or a Share
//   const Schema& schema = Schema::standard();   // of the ring: stash.schema()
//   const auto column = static_cast<std::uint16_t>(Std::token_ids);
//   const auto shape = packed_shape(batch, schema, column);   // i32[total tokens]
//   if (!shape) ...
//   std::vector<std::int64_t> ids(shape->elements());
//   const auto memory = std::as_writable_bytes(std::span(ids));
//   if (!pack_column(batch, schema, column, memory, {.dtype = dtype_i64})) ...
//
// The batch, or the share of one, must be leased until the call returns. Calls for one batch may
// run at once in several threads; none of them may be under way when the batch is acknowledged.
// What is large is copied by several threads.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "rollring/error.hpp"
#include "rollring/export.hpp"
#include "rollring/schema.hpp"
#include "rollring/sequences.hpp"

namespace rollring {

struct ArrayShape {
    DType dtype{};  // as the records have it
    std::uint8_t dims = 0;
    std::array<std::uint64_t, 5> shape{};

    [[nodiscard]] std::uint64_t elements() const {
        std::uint64_t count = 1;
        for (std::size_t i = 0; i < dims; i++) count *= shape[i];
        return count;
    }
};

struct ColumnCopy {
    // Of the target; as the records have it where it is not set. Between numbers all conversions
    // are made as C++ makes them, a float to an integer towards zero; what is out of the target's
    // range is an error for integers, and infinite for floats. Every number but 0 is true.
    std::optional<DType> dtype = {};
    // What a sequence has in each element that does not carry the column; not set: an error.
    std::optional<double> missing = {};
    std::uint32_t threads = 0;  // at most so many; 0: as many as pay
};

enum class Side : std::uint8_t { left, right };

struct Padding {
    double value = 0;
    Side side = Side::right;        // where the padding is
    std::uint64_t length = 0;       // tokens of each row; 0: of the longest sequence
    std::uint64_t multiple_of = 1;  // `length` is rounded up to it
};

// [total tokens, inner dims...]; the sequence i has the rows from cu_seqlens()[i] on.
// Errors: invalid_argument (no column of this schema, not per token, no sequence carries it, or
// their inner dims or dtypes differ), not_leased.
ROLLRING_API Result<ArrayShape> packed_shape(const Sequences& batch, const Schema& schema,
                                             std::uint16_t column);
// [sequences, length, inner dims...]. The same errors, and invalid_argument where a sequence is
// longer than the length that was asked for.
ROLLRING_API Result<ArrayShape> padded_shape(const Sequences& batch, const Schema& schema,
                                             std::uint16_t column, const Padding& padding);

// Fill `to`, which is as large as the shape says, in the target's dtype.
// Errors: those of the shape, invalid_argument (`to` has another size, a sequence does not carry
// the column and `missing` is not set, or a value is out of the target's range: it names the
// sequence; what has been written by then stays).
ROLLRING_API Result<void> pack_column(const Sequences& batch, const Schema& schema,
                                      std::uint16_t column, std::span<std::byte> to,
                                      const ColumnCopy& copy = {});
ROLLRING_API Result<void> pad_column(const Sequences& batch, const Schema& schema,
                                     std::uint16_t column, std::span<std::byte> to,
                                     const Padding& padding, const ColumnCopy& copy = {});

}  // namespace rollring
