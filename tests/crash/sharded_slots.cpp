// Ranks on the host, with slots.

#include "sharded_memory.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {

std::unique_ptr<RankMemory> make_rank_memory(std::uint32_t rank, std::uint32_t ranks,
                                             std::int64_t period) {
    return std::make_unique<RankMemoryOf<TrainerShard>>(rank, ranks, period);
}

RankDevices rank_devices() {
    return {Device::host(), Device::host(), PayloadMemory::automatic};
}

}  // namespace rollring::test
