#pragma once
// A trainer's shard in memory that other processes can open.

#include <cstring>
#include <memory>
#include <vector>

#include "fake_allocations.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {

class ExposedShard {
  public:
    ExposedShard(std::uint32_t rank, std::uint32_t ranks, std::int64_t period)
        : shard_(rank, ranks, period), list_(shard_.list()) {
        for (WeightTensor& tensor : list_) {
            memory_.push_back(std::make_unique<FakeAllocation>(bytes_of(tensor)));
            tensor.data = memory_.back()->data();
        }
    }
    void fill(std::int64_t version) {
        shard_.fill(version);
        for (std::size_t i = 0; i < list_.size(); i++) {
            std::memcpy(list_[i].data, shard_.list()[i].data, bytes_of(list_[i]));
        }
    }
    [[nodiscard]] std::vector<WeightTensor>& list() { return list_; }
    [[nodiscard]] std::vector<std::byte> layout() const { return shard_.layout(); }

  private:
    static std::uint64_t bytes_of(const WeightTensor& tensor) {
        return static_cast<std::uint64_t>(tensor.shape[0]) * tensor.dtype.bytes();
    }

    TrainerShard shard_;
    std::vector<WeightTensor> list_;
    std::vector<std::unique_ptr<FakeAllocation>> memory_;
};

}  // namespace rollring::test
