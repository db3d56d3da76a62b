// A trainer and three engines, killed and stopped at random moments, by the hundred.
//
//   kill_weights [--kills N] [--seed N] [--gpu] [--direct] [--delta]
//   kill_weights --soak VERSIONS [--kills N] [--seed N] [--gpu] [--direct]
//
// With --direct engines read the trainer's tensors where they lie, on a GPU.
//
// A soak commits that many versions, which change 0 to 60 % of all elements, to engines that stage
// by difference: every parameter is compared after every version, no engine is ever poisoned, and
// the memory of engine 0, which is not killed, does not grow.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <random>

#include "weights_roles.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct Did {
    std::uint64_t trainer_kills = 0;
    std::uint64_t engine_kills = 0;
    std::uint64_t stops = 0;
};

class Driver {
  public:
    Driver(const Crew& crew, std::uint64_t seed) : crew_(crew), stage_(crew), dice_(seed) {
        stage_.start_trainer(0);
        for (std::uint32_t i = 0; i < crew.engines; i++) stage_.start_engine(i);
        some_syncs(1);
    }

    void run(std::uint64_t kills) {
        while (did_.trainer_kills + did_.engine_kills < kills) {
            const auto who = static_cast<std::uint32_t>(dice_() % (crew_.engines + 1));
            pid_t& pid = who == crew_.engines ? stage_.trainer(0) : stage_.engine(who);
            if (dice_() % 4 == 0) {
                stop(pid);
                continue;
            }
            // Sometimes it gets no time at all; sometimes as long as the others need for a version.
            if (dice_() % 3 != 0) some_syncs(dice_() % 3);
            strike(who, pid);
        }
        some_syncs(5);
        stage_.finish();
        print();
    }

    void soak(std::uint64_t versions, std::uint64_t kills) {
        const std::uint64_t between = 2 * versions / (kills + 1) + 1;
        std::uint64_t early = 0;
        while (committed() < versions || did_.trainer_kills + did_.engine_kills < kills) {
            some_syncs(dice_() % between + 1);
            if (early == 0 && committed() > versions / 4) early = memory();
            if (did_.trainer_kills + did_.engine_kills >= kills) continue;
            const auto who = static_cast<std::uint32_t>(1 + dice_() % crew_.engines);
            strike(who, who == crew_.engines ? stage_.trainer(0) : stage_.engine(who));
        }
        some_syncs(1);
        const std::uint64_t last = memory();
        stage_.finish();
        report_soak(early, last);
    }

  private:
    [[nodiscard]] std::uint64_t committed() { return stage_.board().trainers[0].syncs; }
    [[nodiscard]] std::uint64_t memory() { return stage_.board().engines[0].memory_bytes; }

    void strike(std::uint32_t who, pid_t& pid) {
        static_cast<void>(ended_within(pid, static_cast<std::int64_t>(dice_() % 2'000'000)));
        const pid_t struck = pid;
        pid = 0;
        require(kill_and_collect(struck), "process {} had ended by itself", struck);
        (who == crew_.engines ? did_.trainer_kills : did_.engine_kills)++;
        who == crew_.engines ? stage_.start_trainer(0) : stage_.start_engine(who);
    }

    void report_soak(std::uint64_t early, std::uint64_t last) {
        std::uint64_t taken = 0;
        std::uint64_t poisoned = 0;
        std::uint64_t rolled_back = 0;
        std::uint64_t unchanged = 0;
        std::uint64_t most = 0;  // thousandths
        for (std::uint32_t i = 0; i < crew_.engines; i++) {
            const EngineNote& engine = stage_.board().engines[i];
            taken += engine.syncs;
            poisoned += engine.poisoned;
            rolled_back += engine.rolled_back;
            unchanged += engine.changed[0];
            for (std::size_t share = 0; share < engine.changed.size(); share++) {
                if (engine.changed[share] != 0) most = std::max<std::uint64_t>(most, share);
            }
        }
        fmt::print(
            "versions={} taken={} trainer_kills={} engine_kills={} poisoned={} rolled_back={} "
            "unchanged={} most_changed_permille={} engine0_early_bytes={} engine0_last_bytes={}\n",
            committed(), taken, did_.trainer_kills, did_.engine_kills, poisoned, rolled_back,
            unchanged, most, early, last);
        require(poisoned == 0, "{} poisoned", poisoned);
        require(did_.trainer_kills > 0 && did_.engine_kills > 0 && rolled_back > 0,
                "not everyone was struck, or no engine went back");
        require(unchanged > 0 && most >= 500 && most <= 650, "the shares were not 0 to 60 %");
        constexpr std::uint64_t slack = std::uint64_t{8} << 20;
        require(last <= early + slack, "engine 0 grew from {} to {} bytes", early, last);
    }

    // Until every engine has taken so many versions more.
    void some_syncs(std::uint64_t count) {
        std::uint64_t before[engines_max];
        for (std::uint32_t i = 0; i < crew_.engines; i++) before[i] = syncs(i);
        stage_.wait("versions to go through", [&] {
            for (std::uint32_t i = 0; i < crew_.engines; i++) {
                if (syncs(i) < before[i] + count) return false;
            }
            return true;
        });
    }

    // Stopped, until the others have noticed or for a moment, and let go on.
    void stop(pid_t pid) {
        kill(pid, SIGSTOP);
        await_stopped(pid);
        const std::uint64_t expelled = all_expelled();
        const std::uint64_t versions = stage_.board().trainers[0].syncs;
        if (dice_() % 2 == 0 && pid != stage_.trainer(0)) {
            // It is expelled, unless it was not attached at all.
            const auto gone_on = [&] {
                return all_expelled() > expelled || stage_.board().trainers[0].syncs > versions + 2;
            };
            stage_.wait("the others to go on without the stopped one", gone_on, pid);
        }
        static_cast<void>(ended_within(pid, static_cast<std::int64_t>(dice_() % 3'000'000)));
        kill(pid, SIGCONT);
        did_.stops++;
    }

    [[nodiscard]] std::uint64_t syncs(std::uint32_t engine) {
        return stage_.board().engines[engine].syncs;
    }
    [[nodiscard]] std::uint64_t all_expelled() {
        std::uint64_t sum = 0;
        for (const auto& count : stage_.board().expelled) sum += count;
        return sum;
    }

    void print() {
        std::uint64_t taken = 0;
        std::uint64_t poisoned = 0;
        std::uint64_t kept_old = 0;
        std::uint64_t gone = 0;
        std::uint64_t rolled_back = 0;
        for (std::uint32_t i = 0; i < crew_.engines; i++) {
            const EngineNote& engine = stage_.board().engines[i];
            taken += engine.syncs;
            poisoned += engine.poisoned;
            kept_old += engine.kept_old;
            rolled_back += engine.rolled_back;
            gone += engine.told.of(Errc::peer_gone);
        }
        const TrainerNote& trainer = stage_.board().trainers[0];
        fmt::print(
            "trainer_kills={} engine_kills={} stops={} versions={} taken={} resent={} "
            "expelled={} poisoned={} kept_old={} rolled_back={} peer_gone={} ring={}\n",
            did_.trainer_kills, did_.engine_kills, did_.stops, trainer.syncs.load(), taken,
            trainer.resent.load(), all_expelled(), poisoned, kept_old, rolled_back, gone,
            stage_.committed());
        require(!crew_.delta || rolled_back > 0, "no engine went back");
        require(did_.trainer_kills > 0 && did_.engine_kills > 0 && did_.stops > 0,
                "not everyone was struck");
        require(trainer.syncs >= did_.engine_kills, "only {} versions", trainer.syncs.load());
        require(taken >= trainer.syncs, "only {} were taken", taken);
        require(gone > 0, "nobody noticed that the trainer died");
    }

    Crew crew_;
    Stage stage_;
    std::mt19937_64 dice_;
    Did did_;
};

int run_all(const std::vector<std::string>& arguments) {
    const std::uint64_t kills = option(arguments, "--kills", 600);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    const bool gpu = std::ranges::find(arguments, "--gpu") != arguments.end();
    const bool delta = std::ranges::find(arguments, "--delta") != arguments.end();
    const bool direct = std::ranges::find(arguments, "--direct") != arguments.end();
    const std::uint64_t soak = option(arguments, "--soak", 0);
    fmt::print("kill_weights --kills {} --seed {}{}{}\n", kills, seed, delta ? " --delta" : "",
               soak != 0 ? fmt::format(" --soak {}", soak) : "");
    static_cast<void>(std::fflush(stdout));
    const Crew crew{
        .engines = 3, .gpu = gpu, .direct = direct, .delta = delta || soak != 0, .soak = soak != 0};
    if (soak != 0) {
        Driver(crew, seed).soak(soak, kills);
    } else {
        Driver(crew, seed).run(kills);
    }
    fmt::print("leftovers in /dev/shm: {}\n", weights_leftovers());
    return weights_leftovers() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (!arguments.empty() && arguments[0] == "--trainer") return trainer_role(arguments);
        if (!arguments.empty() && arguments[0] == "--engine") return engine_role(arguments);
        return run_all(arguments);
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED (process {}): {}\n", getpid(), failure.what());
        return 1;
    }
}
