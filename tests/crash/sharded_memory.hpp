#pragma once
// The memory of the ranks that are killed: slots on the host, or the trainer's own tensors on fake
// GPUs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rollring/weights.hpp"

namespace rollring::test {

// A rank's shard of a trainer.
class RankMemory {
  public:
    virtual ~RankMemory() = default;
    virtual std::vector<WeightTensor>& list() = 0;
    virtual void fill(std::int64_t version) = 0;
    [[nodiscard]] virtual std::vector<std::byte> layout() const = 0;
};
template <class Shard>
class RankMemoryOf : public RankMemory {
  public:
    RankMemoryOf(std::uint32_t rank, std::uint32_t ranks, std::int64_t period)
        : shard_(rank, ranks, period) {}
    std::vector<WeightTensor>& list() override { return shard_.list(); }
    void fill(std::int64_t version) override { shard_.fill(version); }
    [[nodiscard]] std::vector<std::byte> layout() const override { return shard_.layout(); }

  private:
    Shard shard_;
};
std::unique_ptr<RankMemory> make_rank_memory(std::uint32_t rank, std::uint32_t ranks,
                                             std::int64_t period);

struct RankDevices {
    Device trainer;
    Device engine;  // another one, if there are two
    PayloadMemory memory;
};
RankDevices rank_devices();
inline bool is_direct() {
    return rank_devices().memory == PayloadMemory::direct;
}

}  // namespace rollring::test
