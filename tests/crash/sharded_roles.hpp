#pragma once
// A rank of a sharded trainer and a rank of an engine as processes, which stop themselves at a step
// when told to, so that a driver kills them exactly there.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "support/process.hpp"

namespace rollring::test {

constexpr std::uint32_t sharded_max = 8;

struct ShardedBoard {
    std::atomic<std::uint32_t> stop;
    std::atomic<std::uint32_t> late;   // engines copy the trainer's tensors, once decided
    std::atomic<std::int64_t> target;  // the version that trainers publish next
    struct Trainer {
        std::atomic<std::int64_t> made;       // the number of publishers so far
        std::atomic<std::int64_t> tried;      // the last version that it finished or gave up
        std::atomic<std::int64_t> committed;  // by its publisher
    };
    struct Engine {
        std::atomic<std::int64_t> attached;  // how many times
        std::atomic<std::int64_t> live;
        std::atomic<std::int64_t> gave_up;  // the last version that it did not get
        std::atomic<std::int64_t> torn;     // how many times it was poisoned
    };
    std::array<Trainer, sharded_max> trainers;
    std::array<Engine, sharded_max> engines;
};

// The steps at which a process stops itself, in their order.
enum class TrainerStep : std::uint8_t { begun, put, staged, committed, none };
enum class EngineStep : std::uint8_t { seen, held, staged, decided, adopted, none };

// Of BOARD RING RANK RANKS STEP VERSION.
int sharded_trainer(const std::vector<std::string>& arguments);
int sharded_engine(const std::vector<std::string>& arguments);

}  // namespace rollring::test
