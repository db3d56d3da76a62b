#pragma once
// Matches the engine's own tensors with the published ones, by name, dtype and shape, and compiles
// the copies once for each part.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend.hpp"
#include "manifest.hpp"
#include "rollring/weights.hpp"
#include "tensor_memory.hpp"

namespace rollring::weights {

// The published tensors in the form for subscribers.
std::vector<TensorInfo> infos_of(const Packing& packing);

class SubscriberTensors {
  public:
    // `into`: empty for an engine that loads by itself. layout_mismatch, invalid_argument or
    // unsupported, naming the tensor.
    static Result<SubscriberTensors> compile(const Manifest& manifest,
                                             std::span<const WeightTensor> into, bool partial,
                                             device::Mover& mover);

    [[nodiscard]] std::span<const TensorInfo> infos() const { return infos_; }
    // Whether the memory that load writes to exists; already_released, naming the tensor.
    Result<void> check_memory(device::Mover& mover) const;
    // Whether all parts have a destination.
    [[nodiscard]] bool can_load(std::size_t parts) const { return plans_.size() == parts; }
    Result<void> load(std::uint32_t part, const std::byte* slot, Stream stream) {
        return plans_[part]->unpack(slot, stream);
    }
    // Of the engine's tensors; memory that several share counts several times.
    [[nodiscard]] std::uint64_t target_bytes() const { return target_bytes_; }
    // Compares the part's checksums, if there are any; returns the first of its pieces that
    // differs.
    Result<std::optional<std::size_t>> verify(std::uint32_t part, const std::byte* slot,
                                              Deadline deadline) {
        if (sums_.empty()) return std::nullopt;
        return sums_[part]->verify(slot, sums_offset_, deadline);
    }

  private:
    std::vector<TensorInfo> infos_;
    MemoryPlaces places_;
    std::vector<std::unique_ptr<device::CopyPlan>> plans_;  // by part
    std::vector<std::unique_ptr<device::CopyPlan>> sums_;   // by part; empty without checksums
    std::uint64_t sums_offset_ = 0;
    std::uint64_t target_bytes_ = 0;
};

// The same copies for staging by difference. Errors: as compile(), unsupported also where the
// device cannot compare, or a tensor's elements may overlap each other.
Result<std::unique_ptr<device::Difference>> compile_difference(const Packing& packing,
                                                               std::span<const WeightTensor> into,
                                                               bool partial, device::Mover& mover);
// The copies of each part, of an engine whose views are a plan's: no two of their elements share
// memory.
Result<std::vector<std::vector<device::CopyJob>>> compile_planned(
    const Packing& packing, std::span<const WeightTensor> into, device::Mover& mover);

}  // namespace rollring::weights
