// Kills workers and the board of a ring's requests at random moments: no request is finished twice,
// and none is forgotten.
//
//   request_kill [--kills N] [--seed N]

#include <fmt/core.h>

#include "request_load.hpp"

using namespace rollring;
using namespace rollring::test;

int main(int argc, char** argv) {
    return run_self(
        argc, argv,
        {{"--request-board", request_board_role}, {"--request-worker", request_worker_role}},
        [](const std::vector<std::string>& arguments) {
            const std::uint64_t kills = option(arguments, "--kills", 200);
            const std::uint64_t seed =
                option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
            fmt::print("request_kill --kills {} --seed {}\n", kills, seed);
            Dice dice{seed};
            request_kills(kills, dice);
            return leftovers() == 0 ? 0 : 1;
        });
}
