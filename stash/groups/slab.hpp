#pragma once
// Numbered memory for things that stay where they are until they are given back. The number used
// last is taken first: it is in cache. Blocks, not a deque: its two levels and its small nodes cost
// a miss more where there are many.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace rollring {

template <class T>
class Slab {
  public:
    // What lies there is what its last owner left.
    [[nodiscard]] std::uint32_t take() {
        if (free_.empty()) grow();
        const std::uint32_t index = free_.back();
        free_.pop_back();
        return index;
    }
    void give_back(std::uint32_t index) { free_.push_back(index); }

    [[nodiscard]] T& operator[](std::uint32_t index) {
        return (*blocks_[index / block_size])[index % block_size];
    }
    [[nodiscard]] const T& operator[](std::uint32_t index) const {
        return (*blocks_[index / block_size])[index % block_size];
    }

  private:
    static constexpr std::uint32_t block_size = 64;
    using Block = std::array<T, block_size>;

    void grow() {
        const auto first = static_cast<std::uint32_t>(blocks_.size()) * block_size;
        blocks_.push_back(std::make_unique<Block>());
        for (std::uint32_t i = block_size; i > 0; i--) free_.push_back(first + i - 1);
    }

    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<std::uint32_t> free_;
};

}  // namespace rollring
