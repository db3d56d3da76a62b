// Ranks of a sharded trainer and of its engine, killed at each step of a version and at random
// moments: all survivors serve the version, or none does; those that are restarted get it.
//
//   sharded_kill [--kills N] [--seed N] [--ranks N]   N ranks at most on either side

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <random>

#include "rollring/weights.hpp"
#include "sharded_memory.hpp"
#include "sharded_roles.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct Victim {
    bool engine = false;
    std::uint32_t rank = 0;
    int step = 0;
};

class Fleet {
  public:
    Fleet(std::uint32_t ranks, std::uint32_t engines)
        : ranks_(ranks), ring_("sharded", {.lanes = 2, .lane_bytes = 64 << 10}) {
        trainers_.resize(ranks);
        engines_.resize(engines);
        board_->target = -1;
        for (auto& note : board_->trainers) note.tried = note.committed = -1;
        for (auto& note : board_->engines) note.live = note.gave_up = -1;
    }
    Fleet(const Fleet&) = delete;
    Fleet& operator=(const Fleet&) = delete;
    ~Fleet() {
        for (const auto* pids : {&trainers_, &engines_}) {
            for (const pid_t pid : *pids) {
                if (pid > 0) kill_and_collect(pid);
            }
        }
        remove_dead_channels(ring_.name());
    }

    void start(bool engine, std::uint32_t rank, int step, std::int64_t version) {
        auto& pids = engine ? engines_ : trainers_;
        pids[rank] = start_self({engine ? "--engine" : "--trainer", board_.fd(), ring_.name(),
                                 std::to_string(rank), std::to_string(pids.size()),
                                 std::to_string(step), std::to_string(version)});
    }
    [[nodiscard]] ShardedBoard& board() { return *board_.operator->(); }
    [[nodiscard]] pid_t& pid(bool engine, std::uint32_t rank) {
        return (engine ? engines_ : trainers_)[rank];
    }
    [[nodiscard]] std::uint32_t trainers() const { return ranks_; }
    [[nodiscard]] auto engines() const { return static_cast<std::uint32_t>(engines_.size()); }
    [[nodiscard]] std::int64_t in_ring() const { return stat_ring(ring_.name())->policy_version; }

    // Until the condition holds for all ranks but one that is gone; fails if a process has ended.
    template <class Holds>
    void wait(std::string_view what, const Holds& holds) {
        for (const Deadline deadline = patience(); !holds();) {
            require(!deadline.passed(), "waited in vain for {}", what);
            for (const auto* pids : {&trainers_, &engines_}) {
                for (const pid_t one : *pids) {
                    require(one == 0 || look_at(one) != 'e', "a process ended by itself");
                }
            }
            static_cast<void>(
                ended_within(0 < trainers_[0] ? trainers_[0] : engines_[0], 1'000'000));
        }
    }
    template <class Holds>
    [[nodiscard]] bool all(bool engine, const Holds& holds) const {
        const auto& pids = engine ? engines_ : trainers_;
        for (std::uint32_t i = 0; i < pids.size(); i++) {
            if (pids[i] != 0 && !holds(i)) return false;
        }
        return true;
    }
    void wait_tried(std::int64_t version) {
        wait("trainers to finish a version", [&] {
            return all(false, [&](auto i) { return board().trainers[i].tried >= version; });
        });
    }
    void wait_live(std::int64_t version) {
        wait("engines to serve a version",
             [&] { return all(true, [&](auto i) { return board().engines[i].live >= version; }); });
    }
    // All engines have attached once more than at `before`.
    void wait_attached(const std::array<std::int64_t, sharded_max>& before) {
        wait("engines to attach", [&] {
            return all(true, [&](auto i) { return board().engines[i].attached > before[i]; });
        });
    }
    [[nodiscard]] std::array<std::int64_t, sharded_max> attached() {
        std::array<std::int64_t, sharded_max> now{};
        for (std::uint32_t i = 0; i < sharded_max; i++) now[i] = board().engines[i].attached;
        return now;
    }
    void start_all(const Victim& victim, std::int64_t version) {
        const auto before = attached();
        for (const bool engine : {false, true}) {
            const std::uint32_t count = engine ? engines() : trainers();
            for (std::uint32_t rank = 0; rank < count; rank++) {
                const bool hit = victim.engine == engine && victim.rank == rank;
                start(engine, rank, hit ? victim.step : -1, version);
            }
        }
        wait_attached(before);
    }
    void kill_one(bool engine, std::uint32_t rank) {
        const pid_t struck = std::exchange(pid(engine, rank), 0);
        require(kill_and_collect(struck), "process {} had ended by itself", struck);
    }
    void finish() {
        board().stop = 1;
        for (auto* pids : {&engines_, &trainers_}) {
            for (pid_t& one : *pids) {
                const int status = collect(std::exchange(one, 0));
                require(status == 0, "a process ended with {}", status);
            }
        }
    }

  private:
    std::uint32_t ranks_;
    ScratchRing ring_;
    Shared<ShardedBoard> board_;
    std::vector<pid_t> trainers_;
    std::vector<pid_t> engines_;
};

// Whether version 2 must be committed, must not be, or may be either.
enum class Expected : std::uint8_t { committed, aborted, either };

Expected expected_of(const Victim& victim) {
    if (victim.engine) {
        const auto step = static_cast<EngineStep>(victim.step);
        if (step < EngineStep::staged) return Expected::aborted;
        return step == EngineStep::staged ? Expected::either : Expected::committed;
    }
    return static_cast<TrainerStep>(victim.step) < TrainerStep::committed ? Expected::aborted
                                                                          : Expected::committed;
}

void strike_one(std::uint32_t ranks, std::uint32_t engines, const Victim& victim) {
    Fleet fleet(ranks, engines);
    fleet.start_all(victim, 2);
    fleet.board().target = 1;
    fleet.wait_tried(1);
    fleet.wait_live(1);
    const auto before = fleet.attached();
    fleet.board().target = 2;
    await_stopped(fleet.pid(victim.engine, victim.rank));
    fleet.kill_one(victim.engine, victim.rank);
    fleet.wait_tried(2);
    const std::int64_t served = fleet.in_ring();
    const Expected expected = expected_of(victim);
    require(served == 1 || served == 2, "the ring has version {}", served);
    require(expected == Expected::either || (served == 2) == (expected == Expected::committed),
            "the ring has version {}", served);
    require(fleet.all(false, [&](auto i) { return fleet.board().trainers[i].committed == served; }),
            "a rank of the trainer has not committed version {}", served);
    if (served == 2) fleet.wait_live(2);
    // A rank of the trainer that died takes the attachments with it.
    fleet.start(victim.engine, victim.rank, -1, -1);
    if (!victim.engine) fleet.wait_attached(before);
    fleet.wait_live(served);  // the restarted engine, without another version
    require(fleet.all(true, [&](auto i) { return fleet.board().engines[i].live == served; }),
            "an engine does not serve version {}", served);
    fleet.board().target = 3;
    fleet.wait_tried(3);
    fleet.wait_live(3);
    require(fleet.in_ring() == 3, "the ring has version {}", fleet.in_ring());
    fleet.finish();
}

// A rank dies at a step of version 2.
void strike(std::uint32_t ranks, std::uint32_t engines, const Victim& victim) {
    try {
        strike_one(ranks, engines, victim);
    } catch (const Failure& failure) {
        throw Failure(fmt::format("{} ranks to {}, {} {} at its step {}: {}", ranks, engines,
                                  victim.engine ? "engine" : "trainer", victim.rank, victim.step,
                                  failure.what()));
    }
}

std::uint64_t strike_all(std::uint32_t ranks, std::uint32_t engines) {
    std::uint64_t struck = 0;
    for (int step = 0; step < static_cast<int>(TrainerStep::none); step++) {
        for (const std::uint32_t rank : {0U, ranks - 1}) {
            strike(ranks, engines, {.engine = false, .rank = rank, .step = step});
            struck++;
        }
    }
    for (int step = 0; step < static_cast<int>(EngineStep::none); step++) {
        strike(ranks, engines, {.engine = true, .rank = engines - 1, .step = step});
        struck++;
    }
    return struck;
}

// Any rank dies at any moment. The roles check what they see.
void random_kills(std::uint64_t kills, std::uint64_t seed, bool late) {
    std::mt19937_64 dice(seed);
    Fleet fleet(2, 2);
    fleet.board().late = late ? 1 : 0;
    fleet.start_all({.engine = false, .rank = 0, .step = -1}, -1);
    std::int64_t version = 0;
    const auto go_on = [&] {
        // A rank that began a version alone learns from the next one that it is over.
        for (bool done = false; !done;) {
            fleet.board().target = ++version;
            const Deadline moment = Deadline::after_ms(500);
            fleet.wait("a version to end", [&] {
                done = fleet.all(
                    false, [&](auto i) { return fleet.board().trainers[i].tried >= version; });
                return done || moment.passed();
            });
        }
    };
    for (std::uint64_t i = 0; i < kills; i++) {
        fleet.board().target = ++version;
        const bool engine = dice() % 2 == 0;
        const auto rank = static_cast<std::uint32_t>(dice() % 2);
        static_cast<void>(
            ended_within(fleet.pid(engine, rank), static_cast<std::int64_t>(dice() % 5'000'000)));
        fleet.kill_one(engine, rank);
        fleet.start(engine, rank, -1, -1);
        if (dice() % 3 != 0) go_on();
    }
    std::int64_t last = -1;
    while (last != version) {
        go_on();
        last = fleet.in_ring();
    }
    fleet.wait_live(version);
    fleet.finish();
    std::int64_t torn = 0;
    for (const auto& engine : fleet.board().engines) torn += engine.torn;
    fmt::print("random kills={} versions={} torn={}\n", kills, version, torn);
}

int run_all(const std::vector<std::string>& arguments) {
    const std::uint64_t kills = option(arguments, "--kills", 40);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    fmt::print("sharded_kill --kills {} --seed {}\n", kills, seed);
    static_cast<void>(std::fflush(stdout));
    const std::uint64_t most = option(arguments, "--ranks", 8);
    for (const auto& [ranks, engines] : {std::pair{2U, 2U}, {4U, 2U}, {2U, 4U}, {8U, 8U}}) {
        if (std::max(ranks, engines) > most) continue;
        fmt::print("{} ranks to {}: {} deaths at steps\n", ranks, engines,
                   strike_all(ranks, engines));
    }
    random_kills(kills, seed, false);
    if (is_direct()) random_kills(kills, seed, true);
    fmt::print("leftovers in /dev/shm: {}\n", leftovers());
    return leftovers() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    return run_self(argc, argv, {{"--trainer", sharded_trainer}, {"--engine", sharded_engine}},
                    run_all);
}
