#include "fault_runs.hpp"
#include "share_load.hpp"

namespace rollring::test {

bool share_run(const Fault& fault, Dice& dice) {
    ShareRun run;
    const bool of_reader = fault.point == "share.seat_taken" || fault.point == "share.held" ||
                           fault.point == "share.let_go";
    ShareRun::Role& victim = of_reader ? run.reader(dice.below(share_readers)) : run.trainer();
    run.start(victim, fault.plan());
    run.start_all();
    await_strike(victim.pid);
    const Struck struck = end_strike(fault, victim.pid);
    if (struck == Struck::no) return false;
    if (struck == Struck::ended) run.start_all();
    const std::uint64_t groups = run.ledger().groups;
    run.until([&] { return run.ledger().groups >= groups + 20; });
    run.finish();
    return true;
}

}  // namespace rollring::test
