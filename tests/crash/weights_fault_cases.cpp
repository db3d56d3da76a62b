#include "weights_fault_cases.hpp"

#include <csignal>

#include "weights_model.hpp"

namespace rollring::test {
namespace {

constexpr int exit_status = 86;  // of the action "exit"

// Starts everyone, the victim with its plan, and waits until it has struck.
void start(Stage& stage, const FaultCase& fault, const Crew& crew, bool trainer) {
    const auto plan = [&](bool it_is, std::uint32_t index) {
        return it_is && index == fault.victim ? fault.plan : std::string();
    };
    for (std::uint32_t i = 0; i < crew.ranks; i++) stage.start_trainer(i, plan(trainer, i));
    for (std::uint32_t i = 0; i < crew.engines; i++) stage.start_engine(i, plan(!trainer, i));
    const pid_t victim = trainer ? stage.trainer(fault.victim) : stage.engine(fault.victim);
    stage.wait("the point to be hit", [&] { return look_at(victim) != 'r'; }, victim);
    if (fault.stop) return await_stopped(victim);
    const int status = collect(victim);
    (trainer ? stage.trainer(fault.victim) : stage.engine(fault.victim)) = 0;
    const int wanted = fault.plan.contains(":kill:") ? 128 + SIGKILL : exit_status;
    require(status == wanted, "the victim ended with status {}", status);
}

std::uint64_t syncs_of(Board& board, std::uint32_t engine) {
    return board.engines[engine].syncs;
}

// Everyone takes some more versions.
void all_go_on(Stage& stage, const Crew& crew) {
    std::uint64_t before[engines_max];
    for (std::uint32_t i = 0; i < crew.engines; i++) before[i] = syncs_of(stage.board(), i);
    const std::int64_t served = stage.board().served;
    stage.wait("everyone to take 3 versions more", [&] {
        for (std::uint32_t i = 0; i < crew.engines; i++) {
            if (syncs_of(stage.board(), i) < before[i] + 3) return false;
            if (stage.board().engines[i].live <= served) return false;
        }
        return true;
    });
}

void end(Stage& stage, const Crew& crew, Totals& totals) {
    all_go_on(stage, crew);
    stage.finish();
    totals.add(stage.board());
}

}  // namespace

void Totals::add(Board& board) {
    for (EngineNote& engine : board.engines) {
        syncs += engine.syncs;
        poisoned += engine.poisoned;
        kept_old += engine.kept_old;
        for (std::size_t code = 0; code < codes; code++) {
            told[static_cast<Errc>(code)] += engine.told.by_code[code];
        }
    }
    for (TrainerNote& trainer : board.trainers) {
        resent += trainer.resent;
        for (std::size_t code = 0; code < codes; code++) {
            told[static_cast<Errc>(code)] += trainer.told.by_code[code];
        }
    }
    for (const auto& count : board.expelled) expelled += count;
}

void strike_engine(const FaultCase& fault, const Crew& crew, Totals& totals) {
    Stage stage(crew);
    start(stage, fault, crew, false);
    Board& board = stage.board();
    const std::uint32_t other = 1 - fault.victim;
    const pid_t victim = stage.engine(fault.victim);
    const std::uint64_t syncs = syncs_of(board, other);
    const std::uint64_t committed = board.trainers[0].syncs;
    const auto others_go_on = [&] {
        const bool missed = !fault.stop || fault.closing || board.blamed[fault.victim] > 0;
        return missed && syncs_of(board, other) > syncs + 8 &&
               board.trainers[0].syncs > committed + 8;
    };
    stage.wait("the others to go on without the victim", others_go_on, victim);
    if (fault.stop) {
        require(state_of(victim) == 'T', "the victim is in state {}", state_of(victim));
        require(board.engines[fault.victim].told.of(Errc::expelled) == 0, "told while stopped");
        kill(victim, SIGCONT);
        if (!fault.closing) {
            stage.wait("the victim to be told that it was expelled",
                       [&] { return board.engines[fault.victim].told.of(Errc::expelled) > 0; });
        }
    } else {
        stage.start_engine(fault.victim);
    }
    end(stage, crew, totals);
}

void strike_trainer(const FaultCase& fault, const Crew& crew, Totals& totals) {
    Stage stage(crew);
    start(stage, fault, crew, true);
    Board& board = stage.board();
    const pid_t victim = stage.trainer(fault.victim);
    std::uint64_t told[engines_max];
    for (std::uint32_t i = 0; i < crew.engines; i++) {
        const Told& all = board.engines[i].told;
        told[i] = fault.stop ? all.of(Errc::timed_out) : all.all();
    }
    const auto engines_know = [&] {
        for (std::uint32_t i = 0; i < crew.engines; i++) {
            if (i % crew.ranks != fault.victim) continue;
            const Told& all = board.engines[i].told;
            if ((fault.stop ? all.of(Errc::timed_out) : all.all()) <= told[i]) return false;
        }
        return true;
    };
    stage.wait("its engines to be told", engines_know, victim);
    if (crew.ranks > 1) {
        Told& rank = board.trainers[1 - fault.victim].told;
        const std::uint64_t before = rank.all();
        // A rank that waits for versions of rank 0 is told nothing.
        if (fault.victim == 1) {
            stage.wait("rank 0 to be told", [&] { return rank.all() > before; }, victim);
        }
    }
    if (fault.stop) {
        const std::unique_ptr<Store> store = make_store(Device::host());
        Model model(*store);
        const auto rival = Publisher::create(stage.ring(), model.list(),
                                             {.rank = fault.victim, .ranks = crew.ranks});
        require(!rival && rival.error().code == Errc::busy, "a stopped publisher is not alone: {}",
                rival ? "a rival came" : rival.error().to_string());
        require(state_of(victim) == 'T', "the victim is in state {}", state_of(victim));
        kill(victim, SIGCONT);
    } else {
        stage.start_trainer(fault.victim);
    }
    end(stage, crew, totals);
}

}  // namespace rollring::test
