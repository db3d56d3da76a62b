#pragma once
// Random layouts of a trainer and of an engine (tests/shards) with memory behind them: the values
// of a version, and the bytes that each rank of the engine must have then.

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "random_layouts.hpp"

namespace rollring::test {

using Dice = std::mt19937_64;
using Bytes = std::vector<std::vector<std::byte>>;

// The memories of one rank, and its part of the layout.
struct RankMemory {
    std::vector<std::size_t> memories;  // of the whole layout
    Bytes bytes;
    std::vector<WeightTensor> list;
    std::vector<std::byte> layout;
};

struct RandomEngine {
    std::string name;
    RankMemory held;
    SubscriberOptions options;
    std::optional<Subscriber> subscriber;
    Bytes wanted;                 // that it must hold
    std::optional<Bytes> before;  // and after a rollback
    std::int64_t live = -1;
    std::int64_t live_before = -1;
};

class ShardWorld {
  public:
    // The first layouts from this seed on that fit without a cast.
    ShardWorld(unsigned seed, std::uint64_t ranks, std::uint64_t engines);

    // Changes each value with this probability, in the trainer's memory.
    void change(double density);
    // The version of these values, put by all ranks.
    std::vector<Transaction> put(std::int64_t version);
    static void commit(std::vector<Transaction>& open);
    // The bytes of the present values in this engine's memory.
    [[nodiscard]] Bytes values_for(const RandomEngine& engine) const;
    void attach(RandomEngine& engine);

    [[nodiscard]] Dice& dice() { return dice_; }
    [[nodiscard]] unsigned seed() const { return seed_; }
    [[nodiscard]] std::vector<RandomEngine>& engines() { return engines_; }
    [[nodiscard]] std::vector<std::unique_ptr<Publisher>>& publishers() { return publishers_; }

  private:
    [[nodiscard]] static RankMemory memory_of(const WeightLayout& layout, std::uint32_t rank);
    void write(const Memories& elements, RankMemory& into) const;

    Dice dice_;
    unsigned seed_;
    TestRing ring_{};
    Truth truth_;
    std::vector<std::vector<std::uint64_t>> values_;  // by tensor and element
    std::vector<RankMemory> trainer_;
    std::vector<std::unique_ptr<Publisher>> publishers_;
    std::vector<RandomEngine> engines_;
};

}  // namespace rollring::test
