// Goal: promise P9, no run stands still while each of its groups fits (docs/progress.md).
// Method: a seeded world over a real ring: producers and a trainer take turns in one thread, in any
// order, and nobody ever waits: whoever would is refused and comes again, while its wish stands in
// its lane. The clock is ours (clock_gettime is defined here), so what needs two milliseconds of
// standstill or a second of patience takes no time and is counted. An oracle follows every group.
//
//   progress_simulation --seeds 100000 [--first N]     a failing seed prints what replays it
//   progress_simulation --seed N --verbose
//   progress_simulation --plant deaf                   a lie that must be found

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <ctime>

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
    std::uint64_t seeds = 1000;
    std::uint64_t first = 1;
    std::optional<std::uint64_t> only;
    std::int64_t tell_slow_ms = 0;
    Settings settings;
    CLI::App app{"simulates producers and a trainer on a real ring and looks for standstills"};
    app.add_option("--seeds", seeds, "how many worlds");
    app.add_option("--first", first, "the first seed");
    app.add_option("--seed", only, "this one alone");
    app.add_flag("--verbose", settings.verbose, "tell every step");
    app.add_option("--slow", tell_slow_ms, "name worlds that stood still for so many ms");
    const std::map<std::string, Plant> plants{{"none", Plant::none},
                                              {"deaf", Plant::deaf},
                                              {"owed", Plant::owed},
                                              {"halves", Plant::halves}};
    app.add_option("--plant", settings.plant,
                   "a lie that must be found: deaf (nobody hears who waits for room), owed (what "
                   "open groups need is forgotten), halves (groups claim too little)")
        ->transform(CLI::CheckedTransformer(plants));
    CLI11_PARSE(app, argc, argv);
    if (only) {
        first = *only;
        seeds = 1;
    }
    for (const int number : {SIGINT, SIGTERM}) {
        std::signal(number, [](int got) { stop_signal = got; });
    }
    Counts counts;
    for (std::uint64_t seed = first; seed < first + seeds && stop_signal == 0; seed++) {
        World world(seed, settings, counts);
        world.run();
        if (tell_slow_ms != 0 && world.slow_ >= tell_slow_ms * ms) {
            fmt::print("seed {} stood still for {} ms\n", seed, world.slow_ / ms);
        }
    }
    if (stop_signal != 0) return 128 + stop_signal;
    report(counts, seeds);
    return 0;
}
