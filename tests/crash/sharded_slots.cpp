// Ranks on the host, with slots.

#include "sharded_memory.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {
namespace {

class HostShard : public RankMemory {
  public:
    HostShard(std::uint32_t rank, std::uint32_t ranks, std::int64_t period)
        : shard_(rank, ranks, period) {}
    std::vector<WeightTensor>& list() override { return shard_.list(); }
    void fill(std::int64_t version) override { shard_.fill(version); }
    [[nodiscard]] std::vector<std::byte> layout() const override { return shard_.layout(); }

  private:
    TrainerShard shard_;
};

}  // namespace

std::unique_ptr<RankMemory> make_rank_memory(std::uint32_t rank, std::uint32_t ranks,
                                             std::int64_t period) {
    return std::make_unique<HostShard>(rank, ranks, period);
}

RankDevices rank_devices() {
    return {Device::host(), Device::host(), PayloadMemory::automatic};
}

}  // namespace rollring::test
