#pragma once
// An engine's view of a published tensor, as copies out of pieces. Slots hold runs of the published
// elements, so a view may lie in many of them, and end within a row.

#include <cstdint>
#include <vector>

#include "packing.hpp"

namespace rollring::weights {

class ViewCopies {
  public:
    // layout_mismatch, invalid_argument or unsupported, naming the tensor, which has a view.
    static Result<ViewCopies> make(const WeightTensor& tensor, const PackedTensor& published);

    // Adds the copies of the elements that lie in this piece. unsupported: there are too many.
    Result<void> cut(const Piece& piece, std::vector<CopyJob>& jobs) const;

  private:
    // The distance of neighbours, in elements, in the engine's tensor and in the published one.
    struct Dim {
        std::uint64_t extent;
        std::uint64_t to;
        std::uint64_t from;
    };
    // A box of indices: those of dimension i from begin[i] to before end[i].
    struct Box {
        std::vector<std::uint64_t> begin;
        std::vector<std::uint64_t> end;
    };
    class Cutter;

    explicit ViewCopies(const WeightTensor& tensor)
        : tensor_(&tensor), element_bytes_(tensor.dtype.bytes()) {}
    // Drops dimensions of one, and joins those that are adjacent on both sides.
    static void join(std::vector<Dim>& dims);
    [[nodiscard]] CopyJob copy_of(const Box& box, const Piece& piece) const;

    const WeightTensor* tensor_;
    std::uint32_t element_bytes_;
    std::uint64_t offset_ = 0;
    bool empty_ = false;
    std::vector<Dim> dims_;  // joined; the largest stride in the engine's tensor first
};

}  // namespace rollring::weights
