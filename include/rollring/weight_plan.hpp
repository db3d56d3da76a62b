#pragma once
// The copies that fill an engine's layout from a trainer's: computed once for a pair of layouts.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/version.hpp"
#include "rollring/weight_layout.hpp"

namespace rollring {

// Elements that go from one memory to another: element (i, j, ...) is number
// offset + i * strides[0] + j * strides[1] + ... on either side. No extent is 1, and dimensions
// that are adjacent on both sides are joined, so a copy without dimensions has one element.
struct PlanCopy {
    std::uint32_t tensor = 0;  // of the engine's layout; the first one of several that were merged
    std::uint32_t from = 0;    // a memory of the trainer's layout
    std::uint32_t to = 0;      // a memory of the engine's layout
    std::uint64_t from_offset = 0;
    std::uint64_t to_offset = 0;
    // The largest stride in `to` first. As many as the tensor has, 16 at most; copies are not
    // merged beyond 6.
    std::span<const std::int64_t> extents;
    std::span<const std::int64_t> from_strides;
    std::span<const std::int64_t> to_strides;

    [[nodiscard]] std::uint64_t elements() const {
        std::uint64_t product = 1;
        for (const std::int64_t extent : extents) product *= static_cast<std::uint64_t>(extent);
        return product;
    }
};

struct PlanOptions {
    // A number for the device of each rank; equal numbers are one device, and bytes from a device
    // to itself are local. Empty: rank r is on device r.
    std::vector<std::uint32_t> from_devices = {};
    std::vector<std::uint32_t> to_devices = {};
};

// The bytes from a trainer's rank to an engine's rank.
struct PlanTraffic {
    std::uint32_t from_rank = 0;
    std::uint32_t to_rank = 0;
    bool local = false;
    std::uint64_t bytes = 0;  // in the engine's dtypes
    std::uint64_t copies = 0;
};

// The bytes of a tensor.
struct PlanTensor {
    std::uint32_t tensor = 0;  // of the engine's layout
    std::uint64_t local_bytes = 0;
    std::uint64_t remote_bytes = 0;
};

class ROLLRING_API WeightPlan {
  public:
    // Every element of the engine's boxes comes from exactly one box of the trainer; of several
    // that hold it, from one on the same device, then from one of the wanted dtype. Of replicas of
    // the same box on other devices, the engine's rank decides, so that its ranks spread over them.
    // Elements of the engine's memories in no box are padding, and stay as they are.
    // Tensors that the engine lacks are left out. Values of f32 become bf16 or f16 where the engine
    // has that dtype.
    // Errors, each with the tensor and the box: layout_mismatch (the trainer lacks the tensor or
    // some of the box's elements, the shapes differ, the dtypes do, or two boxes of the engine
    // share memory), unsupported (elements of one box of the engine share memory, or two boxes are
    // too interleaved to tell), invalid_argument (options).
    static Result<WeightPlan> make(const WeightLayout& from, const WeightLayout& to,
                                   const PlanOptions& options = {});

    [[nodiscard]] std::size_t copies() const { return rows_.size(); }
    // Its spans are valid as long as the plan. Those of one pair of memories follow each other.
    [[nodiscard]] PlanCopy copy(std::size_t index) const;
    // By trainer's rank, then by engine's.
    [[nodiscard]] std::span<const PlanTraffic> traffic() const { return traffic_; }
    // In the order of the engine's tensors.
    [[nodiscard]] std::span<const PlanTensor> tensors() const { return tensors_; }
    [[nodiscard]] std::uint64_t local_bytes() const;
    [[nodiscard]] std::uint64_t remote_bytes() const;
    // Elements of the engine's memories that no box has.
    [[nodiscard]] std::uint64_t padding_elements() const { return padding_elements_; }

  private:
    friend class PlanBuilder;
    struct Row {
        std::uint64_t from_offset;
        std::uint64_t to_offset;
        std::uint32_t tensor;
        std::uint32_t from;
        std::uint32_t to;
        std::uint32_t dims;
        std::uint64_t first_dim;  // extents, from_strides and to_strides follow each other
    };
    std::vector<Row> rows_;
    std::vector<std::int64_t> dims_;
    std::vector<PlanTraffic> traffic_;
    std::vector<PlanTensor> tensors_;
    std::uint64_t padding_elements_ = 0;
};

}  // namespace rollring
