#pragma once
// From where the tensors of the open version were put, for those that are tied: these go with their
// owner, and other values of their own would never be sent.

#include <cstdint>
#include <unordered_map>

#include "published_tensors.hpp"

namespace rollring::weights {

class TiedPuts {
  public:
    explicit TiedPuts(const PublishedTensors& tensors) : tensors_(&tensors) {}

    void start() { from_.clear(); }
    // `source` null: from where it lies.
    void note(std::uint32_t tensor, const void* source) {
        from_[tensor] = source == nullptr ? tensors_->address(tensor) : source;
    }
    // Of a tied tensor; invalid_argument, naming both, if its owner came from elsewhere.
    [[nodiscard]] Result<void> check(std::uint32_t tensor, const void* source) const;

  private:
    const PublishedTensors* tensors_;
    std::unordered_map<std::uint32_t, const void*> from_;
};

}  // namespace rollring::weights
