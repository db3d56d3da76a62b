#pragma once
// The layout of a set of tensors in slots: part and offset of each piece of each tensor. The
// publisher computes it once; subscribers get it in the manifest.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend.hpp"

namespace rollring::weights {

using device::Cast;
using device::CopyJob;
using device::piece_alignment;

inline constexpr std::size_t tensor_dims_max = 16;
inline constexpr std::size_t tensor_name_bytes_max = 1023;
inline constexpr std::size_t tag_bytes_max = 63;
inline constexpr std::uint64_t tensors_max = 1 << 24;
inline constexpr std::uint64_t slot_bytes_default = std::uint64_t{512} << 20;
inline constexpr std::uint64_t slot_bytes_max = std::uint64_t{1} << 40;

struct PackedTensor {
    std::string name;
    std::string tag;
    DType dtype{};  // as published
    std::vector<std::int64_t> shape;
    std::uint64_t elements = 0;
    std::uint32_t first_piece = 0;
    std::uint32_t pieces = 0;   // none if it has no elements, or is tied
    std::int64_t tied_to = -1;  // index of an earlier tensor with the same bytes

    [[nodiscard]] std::uint64_t bytes() const { return elements * dtype.bytes(); }
};

struct Piece {
    std::uint32_t tensor = 0;
    std::uint64_t first_element = 0;
    std::uint64_t elements = 0;
    std::uint64_t slot_offset = 0;
};

struct Part {
    std::uint32_t first_piece = 0;
    std::uint32_t pieces = 0;
};

struct Packing {
    std::vector<PackedTensor> tensors;
    std::vector<Piece> pieces;  // by part, then by offset; those of one tensor follow each other
    std::vector<Part> parts;
    std::uint64_t sums_offset = 0;  // in every slot: u64 checksum per piece of its part
    std::uint64_t slot_bytes = 0;   // payload and sums
    std::uint64_t payload_bytes = 0;
};

// invalid_argument or unsupported, naming the tensor and the field.
Result<Packing> pack_tensors(std::span<const WeightTensor> tensors, std::uint64_t slot_bytes);

// The same tensors where they lie, as one part of this length, without checksums. `offsets`: those
// of the tensors that have elements and are not tied.
Packing in_one_part(const Packing& packing, std::span<const std::uint64_t> offsets,
                    std::uint64_t bytes);

// The copies of one part between its slot and the caller's tensors; `data` of a tensor may be null
// if only pack_one will be called.
std::vector<CopyJob> pack_jobs(const Packing& packing, const Part& part,
                               std::span<const WeightTensor> tensors);

// Drops dimensions of one, and joins adjacent ones. Empty: contiguous.
struct Strided {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
};
Strided coalesce(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides);

// An error that names the tensor.
std::unexpected<Error> refused(Errc code, const WeightTensor& tensor, std::string_view why);

// Name, tag, dtypes and strides of a tensor; invalid_argument or unsupported, naming it.
Result<void> check_tensor(const WeightTensor& tensor);

// Bytes from `data` to the end of the element furthest from it.
std::uint64_t reach_bytes(const WeightTensor& tensor, std::uint64_t elements);

// Elements of a shape; unsupported or invalid_argument, naming the tensor, if the shape is invalid.
Result<std::uint64_t> count_elements(const WeightTensor& tensor);

}  // namespace rollring::weights
