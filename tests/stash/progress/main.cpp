// Goal: promise P9, no run stands still while each of its groups fits (docs/progress.md).
// Method: a seeded world over a real ring: producers and a trainer take turns in one thread, in any
// order, and no process ever waits: one that would is refused and tries again, while its wish
// remains in its lane. The clock is ours (clock_gettime is defined here), so rules with two
// milliseconds of standstill or a second of patience take no time and are counted. An oracle
// follows every group.
//
//   progress_simulation --seeds 100000 [--first N]     a failing seed prints what replays it
//   progress_simulation --seed N --verbose
//   progress_simulation --plant deaf                   a lie that must be found

#include <fmt/core.h>

#include <csignal>
#include <ctime>

#include "support/process.hpp"
#include "world.hpp"

std::int64_t rollring::test::clock_ns = epoch_ns;
std::atomic<int> rollring::test::stop_signal{0};

using namespace rollring;
using namespace rollring::test;

// Of the whole process, the library included.
extern "C" int clock_gettime(clockid_t, timespec* now) noexcept {
    now->tv_sec = clock_ns / 1'000'000'000;
    now->tv_nsec = clock_ns % 1'000'000'000;
    return 0;
}

namespace {

constexpr const char* usage =
    "progress_simulation [--seeds N] [--first SEED] [--seed SEED] [--verbose] [--slow MS] [--plant "
    "LIE]\n"
    "  --seed     this world alone; --verbose tells every step\n"
    "  --slow     names worlds that stood still for so many ms\n"
    "  --plant    a lie that must be found: deaf (nobody hears who waits for room), owed (what\n"
    "             open groups need is forgotten), halves (groups claim too little)";

void report(const Counts& counts, std::uint64_t seeds) {
    fmt::print(
        "{} worlds: {} records, {} groups in {} batches ({} short), {} void; {} refusals, "
        "{} evacuated, {} deaths, {} restarts, {} sent again, {} nacks\n",
        seeds, counts.records, counts.groups, counts.batches, counts.batches_short, counts.voided,
        counts.refused, counts.evacuated, counts.deaths, counts.restarts, counts.duplicates,
        counts.nacks);
    for (const auto& [kind, stands] : counts.stands) {
        fmt::print(
            "  {:8} {:9}: {} worlds, {} groups; stood 2 ms {} times, 1 s {} times, {} ms at "
            "the longest; stalls 0 (but {} where nothing is promised)\n",
            choice_names[static_cast<int>(kind.first)], known_names[static_cast<int>(kind.second)],
            stands.seeds, stands.groups, stands.let_go, stands.patient, stands.longest_ns / ms,
            stands.told);
    }
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments(argc, argv, usage);
    std::uint64_t seeds = arguments.number("--seeds", 1000);
    std::uint64_t first = arguments.number("--first", 1);
    if (const std::uint64_t only = arguments.number("--seed", 0); only != 0) {
        first = only;
        seeds = 1;
    }
    const auto tell_slow_ms = static_cast<std::int64_t>(arguments.number("--slow", 0));
    Settings settings;
    settings.verbose = arguments.flag("--verbose");
    const std::map<std::string, Plant> plants{{"none", Plant::none},
                                              {"deaf", Plant::deaf},
                                              {"owed", Plant::owed},
                                              {"halves", Plant::halves}};
    const auto plant = plants.find(arguments.word("--plant", "none"));
    arguments.end(plant != plants.end());
    settings.plant = plant->second;
    for (const int number : {SIGINT, SIGTERM}) {
        static_cast<void>(std::signal(number, [](int got) { stop_signal = got; }));
    }
    Counts counts;
    for (std::uint64_t seed = first; seed < first + seeds && stop_signal == 0; seed++) {
        World world(seed, settings, counts);
        world.run();
        if (tell_slow_ms != 0 && world.slow_ns >= tell_slow_ms * ms) {
            fmt::print("seed {} stood still for {} ms\n", seed, world.slow_ns / ms);
        }
    }
    if (stop_signal != 0) return 128 + stop_signal;
    report(counts, seeds);
    return 0;
}
