// rollring-recording: the commands of `rollring` for recordings of batches and for ledgers.

#include "cli/commands/program.hpp"

namespace {

using namespace rollring::cli;

constexpr const char* description =
    R"(Recordings and ledgers: for `rollring record`, `replay`, `ledger` and `restore`

The program rollring has these commands, and this one does their work.)";

}  // namespace

int main(int argc, char** argv) {
    return run_program({.description = description,
                        .footer = "`rollring --help` has all commands.",
                        .commands = {add_record, add_replay, add_ledger, add_restore}},
                       argc, argv);
}
