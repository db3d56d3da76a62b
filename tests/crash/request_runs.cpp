#include <csignal>
#include <utility>

#include "fault_runs.hpp"
#include "request_load.hpp"

namespace rollring::test {

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
    bool struck = false;
    // A victim that is not struck ends well: the board when all is over, a worker never.
    while (look_at(victim.pid) == 'r' && (of_board || look_at(run.board().pid) == 'r')) {
        ended_within(victim.pid, 1'000'000);
    }
    if (look_at(victim.pid) == 's') {
        await_stopped(victim.pid);
        kill(victim.pid, SIGCONT);
        struck = true;
    } else if (look_at(victim.pid) == 'e') {
        const int status = collect(std::exchange(victim.pid, 0));
        struck = was_struck(fault, status);
        if (!struck) return false;
        run.note_death(victim);
    }
    run.start_all();
    run.finish();
    return struck;
}

}  // namespace rollring::test
