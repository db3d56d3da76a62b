#pragma once
// Memory of an engine's GPU for the elements that it takes from another GPU: fetched before a
// version is decided, so that afterwards all copies are within the GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend.hpp"

namespace rollring::weights {

class RemoteStaging {
  public:
    // `parts`: the copies of each part from its slot into the tensors, all views. Makes memory for
    // their elements alone. out_of_device_memory, not_enough_shared_memory.
    static Result<std::unique_ptr<RemoteStaging>> make(
        const std::vector<std::vector<device::CopyJob>>& parts, device::Memory& memory,
        device::Mover& mover);

    // Over the link, into the memory beside.
    Result<void> fetch(std::size_t part, const std::byte* slot, Stream stream) {
        return fetches_[part]->unpack(slot, stream);
    }
    // From there into the tensors.
    Result<void> place(std::size_t part, Stream stream) {
        return places_[part]->unpack(block_->data(), stream);
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  private:
    RemoteStaging() = default;

    std::uint64_t bytes_ = 0;
    std::unique_ptr<device::SharedBlock> block_;
    std::vector<std::unique_ptr<device::CopyPlan>> fetches_;  // by part
    std::vector<std::unique_ptr<device::CopyPlan>> places_;   // likewise
};

}  // namespace rollring::weights
