#include "fault_runs.hpp"
#include "store_load.hpp"

namespace rollring::test {

// The victim is the first, and so keeps the books.
bool store_run(const Fault& fault, Dice& dice) {
    StoreRun run;
    const std::size_t victim = dice.below(store_users);
    run.start(victim, fault.plan());
    const Deadline deadline = patience();
    while (look_at(run.user(victim)) == 'r' && !run.is_kept() && !deadline.passed()) {
        ended_within(run.user(victim), 1'000'000);
    }
    run.start_all();
    while (look_at(run.user(victim)) == 'r' && !deadline.passed()) {
        ended_within(run.user(victim), 1'000'000);
    }
    const Struck struck = end_strike(fault, run.user(victim));
    if (struck == Struck::no) return false;
    if (struck == Struck::ended) run.start_all();
    run.finish();
    return true;
}

}  // namespace rollring::test
