#include <algorithm>
#include <csignal>
#include <utility>

#include "fault_runs.hpp"
#include "request_load.hpp"
#include "rollring/extras/requests.hpp"

namespace rollring::test {
namespace {

// Objects beside rings of this name that are gone.
auto left_of(const std::string& ring) {
    return std::ranges::count_if(list_leftovers(), [&](const std::string& name) {
        return name.find("." + ring + "~") != std::string::npos;
    });
}

}  // namespace

bool request_run(const Fault& fault, Dice& dice) {
    RequestRun run(requests_of_run);
    const bool of_board =
        fault.point == "requests.before_post" || fault.point == "requests.after_post";
    RequestRun::Role& victim = of_board ? run.board() : run.worker(dice.below(2));
    run.start(victim, fault.plan());
    // Alone at first: another worker might leave it nothing to take.
    if (of_board) {
        run.start_all();
    } else {
        run.start(run.board());
    }
    // A victim that is not struck ends well: the board when all is over, a worker never.
    await_strike(victim.pid, [&] { return !of_board && look_at(run.board().pid) != 'r'; });
    const Struck struck = end_strike(fault, victim.pid);
    if (struck == Struck::no) return false;
    if (struck == Struck::ended) run.note_death(victim);
    run.start_all();
    run.finish();
    return true;
}

// The end that comes first is struck while it makes the object of the requests.
bool request_object_run(const Fault& fault, Dice& dice) {
    RequestRun run(requests_of_run);
    RequestRun::Role& victim = dice.below(2) == 0 ? run.board() : run.worker(0);
    if (fault.point == "create.before_clear") {  // there must be something to clear
        run.start(victim, "companion.before_ready:kill");
        const int status = collect(std::exchange(victim.pid, 0));
        require(status == 128 + SIGKILL, "no leftover: status {}", status);
        run.note_death(victim);
    }
    run.start(victim, fault.plan());
    if (await_end_or_stop(victim.pid) == 's') {
        await_stopped(victim.pid);
        // Before it has a claim a rival may go first.
        const bool claimed = fault.point != "create.after_open";
        const auto rival =
            RequestWorker::open(run.ring(), "rival", Deadline::after_ms(claimed ? 5 : 10'000));
        require(rival.has_value() != claimed, "a rival of a maker that stands still: {}",
                rival ? "it has opened" : rival.error().to_string());
        require(rival || rival.error().code == Errc::not_ready, "{}",
                rival ? "" : rival.error().to_string());
        kill(victim.pid, SIGCONT);
    } else {
        if (!was_struck(fault, collect(std::exchange(victim.pid, 0)))) return false;
        run.note_death(victim);
        // At once, for any successor.
        const auto next = RequestWorker::open(run.ring(), "next", Deadline::now());
        require(next.has_value(), "the leftover stays: {}", next ? "" : next.error().to_string());
    }
    run.start_all();
    run.finish();
    return true;
}

// The end that comes first is struck while it makes the object, and the ring is made again.
bool request_remade_run(const Fault& fault, Dice& dice) {
    RequestRun run(requests_of_run);
    RequestRun::Role& victim = dice.below(2) == 0 ? run.board() : run.worker(0);
    run.start(victim, fault.plan());
    const bool stopped = await_end_or_stop(victim.pid) == 's';
    if (stopped) {
        await_stopped(victim.pid);
    } else {
        if (!was_struck(fault, collect(std::exchange(victim.pid, 0)))) return false;
        run.note_death(victim);
    }
    require(remove_ring(run.ring()).has_value(), "the ring cannot be removed");
    require(left_of(run.ring()) == 0, "{} objects are left", left_of(run.ring()));
    run.make_ring_again();
    // It opens on the new ring, as all others do.
    if (stopped) kill(victim.pid, SIGCONT);
    run.start_all();
    run.finish();
    require(left_of(run.ring()) == 0, "{} objects of the old ring", left_of(run.ring()));
    return true;
}

// A remover is struck between the ring's name and the object beside it.
bool request_removal_run(const Fault& fault, Dice& /*dice*/) {
    const ScratchRing ring("removal", {.lanes = 1, .lane_bytes = 64 << 10});
    const auto post = [&](RequestBoard& board) {
        require(board.post({}, patience()).has_value(), "a request cannot be posted");
    };
    {
        auto board = RequestBoard::open(ring.name());
        require(board.has_value(), "{}", board ? "" : board.error().to_string());
        post(*board);
    }
    const pid_t victim = start_self({"--remove", ring.name()}, fault.plan());
    const bool stopped = await_end_or_stop(victim) == 's';
    if (stopped) await_stopped(victim);
    if (!stopped && !was_struck(fault, collect(victim))) return false;
    require(left_of(ring.name()) == 1, "{} objects are left", left_of(ring.name()));
    const auto made = create_ring(ring.name(), {.lanes = 1, .lane_bytes = 64 << 10});
    require(made.has_value(), "the name is not free");
    require(left_of(ring.name()) == 0, "the next ring leaves {}", left_of(ring.name()));
    auto board = RequestBoard::open(ring.name());
    auto worker = RequestWorker::open(ring.name());
    require(board.has_value() && worker.has_value(), "the next ring's requests");
    post(*board);
    if (stopped) {  // it goes on beside the new ring's requests
        kill(victim, SIGCONT);
        require(collect(victim) == 0, "the remover failed");
    }
    for (int i = 0; i < 2; i++) {
        const auto taken = worker->take(i == 0 ? patience() : Deadline::now());
        require(taken.has_value() && taken->has_value() == (i == 0), "one request, and no other");
        if (i == 0) require(worker->finish(**taken), "the request is withdrawn");
    }
    return true;
}

}  // namespace rollring::test
