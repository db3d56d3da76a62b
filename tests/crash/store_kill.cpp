// Kills processes that use a store, and keep its books, at random moments: a value that was put is
// there, whole, until a process clears or replaces it, and none stays for ever.
//
//   store_kill [--kills N] [--seed N]

#include <fmt/core.h>

#include "store_load.hpp"

using namespace rollring;
using namespace rollring::test;

int main(int argc, char** argv) {
    return run_self(argc, argv, {{"--store-user", store_user_role}},
                    [](const std::vector<std::string>& arguments) {
                        const std::uint64_t kills = option(arguments, "--kills", 100);
                        const std::uint64_t seed =
                            option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
                        fmt::print("store_kill --kills {} --seed {}\n", kills, seed);
                        Dice dice{seed};
                        store_kills(kills, dice);
                        return leftovers() == 0 ? 0 : 1;
                    });
}
