#pragma once
// Numbered memory for objects that stay at their address until they are given back. The number that
// was freed last is taken first, because its memory is in cache. Blocks and not a deque, whose two
// levels and small nodes cost one more miss if there are many objects.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace rollring {

template <class T>
class Slab {
  public:
    // The memory still has the contents of its last owner.
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
