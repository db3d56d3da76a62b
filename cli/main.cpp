// rollring: one program for everything that people do with a ring. See `rollring --help`.

#include "cli/commands/passed_on.hpp"
#include "cli/commands/program.hpp"
#include "integrations/atropos/commands/atropos_commands.hpp"

namespace {

using namespace rollring::cli;

// The first line is the NAME of the man page.
constexpr const char* description =
    R"(Move RL rollouts from generators to a trainer through shared memory

Rollouts are token trajectories of any length. They go from the processes that generate
them to the process that trains on them without copies and without loss.)";

constexpr const char* main_footer = R"(Try it:
  rollring demo                             # a complete run on a synthetic load
Step by step, with your own rollouts.jsonl:
  rollring create r --lanes 8 --lane-bytes 64MiB    # a ring for up to 8 producers
  rollring consume r --until-closed &               # the trainer's side
  rollring produce r --input rollouts.jsonl         # the rollout side, any number
  rollring stat r                                   # attached processes, fill level
  wait; rollring rm r
To inspect a running ring: rollring top r (a live page), rollring groups r (the groups
that a trainer waits for), rollring weights r (the weights that the engines serve),
rollring ls, rollring doctor; for Prometheus: rollring metrics.
To size the memory of a run: rollring size.
To keep rollouts: rollring record r --output runs/42; to send them again: rollring replay.
To go on after the machine's death: rollring create r --ledger DIR; rollring restore DIR r.
For unmodified environments and trainers of Atropos: rollring serve-atropos r.
Exit codes: 0 done; 1 failed, or the report could not be written; 2 wrong use;
130, 143 or 129 stopped by Ctrl-C, SIGTERM or the end of the terminal;
141 if the reader of stdout went away, as in `rollring stat r --watch | head`.
`rollring COMMAND --help` has the options of a command, their defaults, and examples.)";

}  // namespace

int main(int argc, char** argv) {
    return run_program({.description = description,
                        .footer = main_footer,
                        .commands = {add_create,
                                     add_rm,
                                     pass_on<ls_line>,
                                     pass_on<stat_line>,
                                     pass_on<doctor_line>,
                                     add_produce,
                                     add_consume,
                                     pass_on<groups_line>,
                                     pass_on<weights_line>,
                                     pass_on<metrics_line>,
                                     add_top,
                                     add_view,
                                     pass_on<record_line>,
                                     pass_on<replay_line>,
                                     pass_on<ledger_line>,
                                     pass_on<restore_line>,
                                     pass_on<serve_atropos_line>,
                                     add_run_env,
                                     add_demo,
                                     add_formats,
                                     add_size}},
                       argc, argv);
}
