#pragma once
// The records that a stash holds, each with its view as it was made and checked when it came: a
// batch shows that one, and not what has become of the header since.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "rollring/consumer.hpp"

namespace rollring {

class HeldRecords {
  public:
    // A place for a record, which stays where it is until it is given back. Used last, taken first:
    // it is in cache.
    [[nodiscard]] std::uint32_t take() {
        if (free_.empty()) grow();
        const std::uint32_t place = free_.back();
        free_.pop_back();
        return place;
    }
    void give_back(std::uint32_t place) { free_.push_back(place); }

    [[nodiscard]] Record& operator[](std::uint32_t place) {
        return (*blocks_[place / block_records])[place % block_records];
    }

  private:
    static constexpr std::uint32_t block_records = 64;
    using Block = std::array<Record, block_records>;

    void grow() {
        const auto first = static_cast<std::uint32_t>(blocks_.size()) * block_records;
        blocks_.push_back(std::make_unique<Block>());
        for (std::uint32_t i = block_records; i > 0; i--) free_.push_back(first + i - 1);
    }

    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<std::uint32_t> free_;
};

}  // namespace rollring
