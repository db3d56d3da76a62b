#pragma once
// The tensors that a publisher sends, and the tied ones among them.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "manifest.hpp"
#include "sealed.hpp"
#include "tensor_memory.hpp"

namespace rollring::weights {

// The tensors of a publisher: their addresses, the layout of their pieces, and the manifest that
// describes them to subscribers. None of it changes from version to version.
class PublishedTensors {
  public:
    // invalid_argument or unsupported, naming the tensor.
    static Result<PublishedTensors> pack(std::span<const WeightTensor> tensors,
                                         std::uint64_t slot_bytes);
    PublishedTensors(PublishedTensors&&) = default;
    PublishedTensors& operator=(PublishedTensors&&) = delete;

    // Checks that all tensors from this piece on have an address.
    Result<void> check_has_addresses(std::uint32_t first_piece) const;
    // The compiled copies of each part that the mover can run from the tensors' own addresses; none
    // if parts are handed on.
    Result<std::vector<std::unique_ptr<device::CopyPlan>>> compile(device::Mover& mover,
                                                                   bool handed_on);
    // Has the tensors read where they lie, in one part. unsupported, naming the tensor: one that
    // cannot be read so; the tensors are packed as before then.
    Result<std::unique_ptr<device::ExposedBlock>> expose(device::Memory& memory,
                                                         device::Mover& mover);
    // Whether the allocations of exposed tensors are those that engines have opened;
    // already_released, naming a tensor.
    [[nodiscard]] Result<void> check_exposed() const;
    [[nodiscard]] bool is_exposed() const { return exposed_ != nullptr; }
    // Writes the manifest, with the slots, the checksums and the layout of these options.
    Result<void> describe(PayloadMemory memory, GpuUuid gpu, const PublisherOptions& options);

    // Whether the memory of these pieces exists; already_released, naming the tensor. With `source`
    // they are of one tensor, which is there.
    Result<void> check_memory(device::Mover& mover, std::uint32_t first_piece, std::uint32_t end,
                              const void* source) const;

    [[nodiscard]] const Packing& packing() const { return manifest_.packing; }
    // A part's bytes in its slot, with checksums.
    [[nodiscard]] std::uint64_t bytes_of(const Part& part) const;
    [[nodiscard]] bool has_payload() const { return !packing().parts.empty(); }
    // The offset of the checksums in each slot; empty: there are none.
    [[nodiscard]] std::optional<std::uint64_t> sums_offset() const {
        if (!manifest_.checksums) return {};
        return packing().sums_offset;
    }
    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    [[nodiscard]] const Sealed& manifest_memory() const { return manifest_memory_; }
    [[nodiscard]] const void* address(std::uint32_t tensor) const { return tensors_[tensor].data; }
    // The index of this name; invalid_argument.
    [[nodiscard]] Result<std::uint32_t> find(std::string_view name) const;

  private:
    Result<void> check_addresses(device::Mover& mover);
    [[nodiscard]] Result<void> check_exposable(std::uint32_t tensor) const;
    PublishedTensors() = default;

    std::vector<WeightTensor> tensors_;
    std::unordered_map<std::string_view, std::uint32_t> index_;  // of names in tensors_
    MemoryPlaces places_;
    const device::ExposedBlock* exposed_ = nullptr;  // its owner outlives this object's use
    std::vector<std::uint32_t> exposed_tensors_;     // by place
    Manifest manifest_;
    Sealed manifest_memory_;
};

// The addresses from which the tensors of the open version were put, for the tied ones: these are
// sent with their owner, so values of their own would never be sent.
class TiedPuts {
  public:
    explicit TiedPuts(const PublishedTensors& tensors) : tensors_(&tensors) {}

    void start() { from_.clear(); }
    // `source` null: from its own address.
    void note(std::uint32_t tensor, const void* source) {
        from_[tensor] = source == nullptr ? tensors_->address(tensor) : source;
    }
    // Checks a tied tensor; invalid_argument, naming both, if its owner was put from elsewhere.
    [[nodiscard]] Result<void> check(std::uint32_t tensor, const void* source) const;

  private:
    const PublishedTensors* tensors_;
    std::unordered_map<std::uint32_t, const void*> from_;
};

}  // namespace rollring::weights
