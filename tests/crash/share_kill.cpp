// Kills and stops the readers of shares in the middle of a read, and the trainer that shares: no
// reader takes other bytes for its share, nothing is lost or delivered twice, and no ack waits past
// its deadline.
//
//   share_kill [--kills N] [--seed N]

#include <fmt/core.h>

#include "share_load.hpp"

using namespace rollring;
using namespace rollring::test;

int main(int argc, char** argv) {
    return run_self(argc, argv,
                    {{"--share-sender", share_sender_role},
                     {"--share-trainer", share_trainer_role},
                     {"--share-reader", share_reader_role}},
                    [](const std::vector<std::string>& arguments) {
                        const std::uint64_t kills = option(arguments, "--kills", 200);
                        const std::uint64_t seed =
                            option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
                        fmt::print("share_kill --kills {} --seed {}\n", kills, seed);
                        Dice dice{seed};
                        share_kills(kills, dice);
                        return leftovers() == 0 ? 0 : 1;
                    });
}
