// Processes killed and stopped at random moments, by the thousand. Each part counts its actions and
// fails below its floor.
//
//   random_kill [--kills N] [--consumer-kills N] [--rounds N] [--long 0|1] [--seed N]

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>

#include "ledger.hpp"
#include "random_kill.hpp"
#include "support/arrivals.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

const SelfRoles roles = {
    {"--producer", producer_role},
    {"--sender", sender_role},
    {"--consumer", consumer_role},
    {"--stopping-producer", stopping_producer_role},
    {"--stopping-consumer", stopping_consumer_role},
};

int run_all(const std::vector<std::string>& arguments) {
    const std::uint64_t kills = option(arguments, "--kills", 2000);
    const std::uint64_t consumer_kills = option(arguments, "--consumer-kills", kills);
    const std::uint64_t rounds = option(arguments, "--rounds", 30);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    const bool long_too = option(arguments, "--long", 0) != 0;
    fmt::print("random_kill --seed {} --kills {} --consumer-kills {} --rounds {} --long {}\n", seed,
               kills, consumer_kills, rounds, long_too ? 1 : 0);
    static_cast<void>(std::fflush(stdout));
    kill_producers(seed, kills);
    static_cast<void>(std::fflush(stdout));
    kill_consumers(seed + 1, consumer_kills);
    static_cast<void>(std::fflush(stdout));
    stop_everyone(seed + 2, rounds, long_too);
    const std::size_t left = leftovers();
    fmt::print("leftovers in /dev/shm: {}\n", left);
    return left == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    return run_self(argc, argv, roles, run_all);
}
