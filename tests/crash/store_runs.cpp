#include "fault_runs.hpp"
#include "store_load.hpp"

namespace rollring::test {

// The victim is the first, and so keeps the books.
bool store_run(const Fault& fault, Dice& dice) {
    StoreRun run;
    const std::size_t victim = dice.below(store_users);
    run.start(victim, fault.plan());
    await_strike(run.user(victim), [&] { return run.is_kept(); });
    run.start_all();
    await_strike(run.user(victim));
    const Struck struck = end_strike(fault, run.user(victim));
    if (struck == Struck::no) return false;
    if (struck == Struck::ended) run.start_all();
    run.finish();
    return true;
}

}  // namespace rollring::test
