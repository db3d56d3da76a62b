#pragma once
// A trainer and its engines as processes of their own, and the board in shared memory on which they
// write down their steps. Each role checks what it sees and fails (exit 1) at the first lie.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/weights.hpp"
#include "support/process.hpp"

namespace rollring::test {

constexpr std::uint32_t engines_max = 4;
constexpr std::uint32_t trainers_max = 2;
constexpr std::size_t codes = static_cast<std::size_t>(Errc::system) + 1;

// Errors that a process was told, by code.
struct Told {
    std::array<std::atomic<std::uint64_t>, codes> by_code;
    [[nodiscard]] std::uint64_t of(Errc code) const {
        return by_code[static_cast<std::size_t>(code)];
    }
    [[nodiscard]] std::uint64_t all() const {
        std::uint64_t sum = 0;
        for (const auto& count : by_code) sum += count;
        return sum;
    }
};

struct EngineNote {
    std::atomic<std::int64_t> live;  // the version that it serves
    std::atomic<std::uint64_t> syncs;
    std::atomic<std::uint64_t> attached;
    std::atomic<std::uint64_t> poisoned;
    std::atomic<std::uint64_t> rolled_back;
    std::atomic<std::uint64_t> memory_bytes;  // resident, after its last version
    // Elements that a version changed, in thousandths; of the versions that it took in order.
    std::array<std::atomic<std::uint64_t>, 1001> changed;
    std::atomic<std::uint64_t> kept_old;  // errors after which the old version was there, whole
    Told told;
};
struct TrainerNote {
    std::atomic<std::int64_t> committed;
    std::atomic<std::uint64_t> syncs;
    std::atomic<std::uint64_t> created;
    std::atomic<std::uint64_t> resent;
    Told told;
};
struct Board {
    std::atomic<std::uint32_t> trainers_stop;
    std::atomic<std::uint32_t> engines_stop;
    std::atomic<std::int64_t> ranks_version;  // the version of rank 0, with several ranks
    std::atomic<std::int64_t> served;         // the largest version that any engine has served
    // Errors of trainers that named the engine and said what it had not done; and its expulsions.
    std::array<std::atomic<std::uint64_t>, engines_max> blamed;
    std::array<std::atomic<std::uint64_t>, engines_max> expelled;
    std::array<EngineNote, engines_max> engines;
    std::array<TrainerNote, trainers_max> trainers;
};

// Some processes on a ring, and how they are told apart.
struct Crew {
    std::uint32_t engines = 2;  // engine i attaches to rank i modulo ranks
    std::uint32_t ranks = 1;
    bool gpu = false;
    bool direct = false;  // engines read the trainer's tensors where they lie, on a GPU
    bool delta = false;   // engines stage by difference, versions change few elements
    bool soak = false;    // of these: 0 to 60 %, and lists may grow, so that nothing poisons
};

// GPU is 0, 1, or 2 for engines that read the trainer's tensors where they lie; DELTA is 0, 1, or 2
// for a soak.
// --trainer BOARD RING RANK RANKS ENGINES GPU DELTA
int trainer_role(const std::vector<std::string>& arguments);
// --engine BOARD RING INDEX RANK GPU DELTA
int engine_role(const std::vector<std::string>& arguments);

// All of them, from the driver's side. A process that is left at the end is killed.
class Stage {
  public:
    explicit Stage(const Crew& crew);
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage();

    pid_t start_trainer(std::uint32_t rank, const std::string& fault = {});
    pid_t start_engine(std::uint32_t index, const std::string& fault = {});
    [[nodiscard]] pid_t& trainer(std::uint32_t rank) { return trainers_[rank]; }
    [[nodiscard]] pid_t& engine(std::uint32_t index) { return engines_[index]; }
    [[nodiscard]] Board& board() { return *board_.operator->(); }
    [[nodiscard]] const std::string& ring() const { return ring_.name(); }
    [[nodiscard]] std::int64_t committed() const;  // in the ring

    // Waits for a condition; fails when a process other than `struck` has ended, or after a minute.
    void wait(std::string_view what, const std::function<bool()>& reached, pid_t struck = 0);
    // Trainers, then engines are told to end, and must end well; nothing may be left.
    void finish();

  private:
    Crew crew_;
    ScratchRing ring_;
    Shared<Board> board_;
    std::array<pid_t, trainers_max> trainers_{};
    std::array<pid_t, engines_max> engines_{};
};

// Rings and sockets of this process's stages that are still there.
std::size_t weights_leftovers();
// Descriptors that this process has open.
std::size_t open_descriptors();
// Memory that this process has resident.
std::uint64_t resident_bytes();

}  // namespace rollring::test
