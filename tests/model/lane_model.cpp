// The lane core under every schedule, stale read and crash within bounds. See --help.

#include <chrono>
#include <cstring>
#include <string_view>

#include "suites.hpp"

namespace model {
namespace {

struct Options {
    Tier tier = Tier::quick;
    bool hunt = false;
    bool orders = false;
    bool verbose = false;
    std::string only;
    std::string trail;
    std::uint64_t seed = 1;
    std::uint64_t executions = 0;
};

constexpr const char* help =
    "usage: lane_model [--full] [--orders] [--hunt] [--only SUITE] [--seed N] [--executions N]\n"
    "                  [--trail A,B,...] [--verbose]\n"
    "  --full        the larger bounds (minutes)\n"
    "  --orders      also weaken each memory order; each mutant must be caught\n"
    "  --hunt        stop at the first violation and exit with 3 (for mutants.py)\n"
    "  --seed, --executions, --trail   run again what failed; --verbose shows every access\n";

struct Totals {
    std::uint64_t executions = 0;
    std::uint64_t crashes = 0;
    std::uint64_t sleeps = 0;
};

void print_counts(const Suite& suite, const Counts& counts, double seconds) {
    const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(
        "%-18s executions %llu  accesses %llu  crashes %llu  stores lost %llu  stale %llu  "
        "sleeps %llu  wakes %llu  timeouts %llu  %.1f s\n ",
        suite.name.c_str(), number(counts.executions), number(counts.steps), number(counts.crashes),
        number(counts.dropped_stores), number(counts.stale_reads), number(counts.sleeps),
        number(counts.wakes), number(counts.timeouts), seconds);
    for (std::size_t i = 0; i < marks_count; i++) {
        if (marks[i] > 0) std::printf(" %s %llu", mark_names[i], number(marks[i]));
    }
    std::printf("\n");
}

// The floors of a green suite. Prints those that are not reached.
bool reached_floors(const Suite& suite, const Counts& counts) {
    bool reached = counts.executions >= suite.executions_floor;
    if (!reached) {
        std::printf("%s: fewer than %llu executions\n", suite.name.c_str(),
                    static_cast<unsigned long long>(suite.executions_floor));
    }
    for (const Mark must : suite.must) {
        const auto at = static_cast<std::size_t>(must);
        if (marks[at] >= marks_floor) continue;
        std::printf("%s: %s reached only %llu times\n", suite.name.c_str(), mark_names[at],
                    static_cast<unsigned long long>(marks[at]));
        reached = false;
    }
    if ((suite.must_crash && counts.crashes < marks_floor) ||
        (suite.must_sleep && counts.sleeps < marks_floor)) {
        std::printf("%s: too few crashes or sleeps\n", suite.name.c_str());
        reached = false;
    }
    return reached;
}

bool run_suite(Suite& suite, const Options& options, Totals& totals) {
    marks = {};
    World explored(suite.bounds);
    explored.verbose = options.verbose;
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t executions = options.executions > 0 ? options.executions : suite.random;
    const bool passed = executions > 0
                            ? explored.explore_random(*suite.program, options.seed, executions)
                            : explored.explore(*suite.program);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const Counts& counts = explored.counts();
    totals.executions += counts.executions;
    totals.crashes += counts.crashes;
    totals.sleeps += counts.sleeps;
    print_counts(suite, counts, took.count());
    if (!passed && executions > 0) {
        std::printf(
            "VIOLATION %s: %s\n  run again: --only %s --executions 1 --seed %llu --verbose\n",
            suite.name.c_str(), explored.failure().c_str(), suite.name.c_str(),
            static_cast<unsigned long long>(options.seed + counts.executions - 1));
    } else if (!passed) {
        std::printf("VIOLATION %s: %s\n  run again: --only %s --verbose --trail %s\n",
                    suite.name.c_str(), explored.failure().c_str(), suite.name.c_str(),
                    explored.trail().c_str());
    }
    (void)std::fflush(stdout);
    return passed && (options.executions > 0 || reached_floors(suite, counts));
}

bool replay(Suite& suite, const Options& options) {
    std::vector<std::uint32_t> choices;
    for (const char* at = options.trail.c_str(); *at != 0; at += *at == ',' ? 1 : 0) {
        char* end = nullptr;
        choices.push_back(static_cast<std::uint32_t>(std::strtoul(at, &end, 10)));
        at = end;
    }
    World explored(suite.bounds);
    explored.verbose = options.verbose;
    const bool passed = explored.replay(*suite.program, choices);
    std::printf("%s: %s\n", suite.name.c_str(), passed ? "passes" : explored.failure().c_str());
    return passed;
}

// A violation of whatever kind in the quick suites, or nothing. Random executions first: most
// mutants die at once.
std::string hunt(std::vector<Suite> prey) {
    for (Suite& suite : prey) {
        World explored(suite.bounds);
        const std::uint64_t executions = suite.bounds.steps > 10'000 ? 20 : 2'000;
        if (!explored.explore_random(*suite.program, 1, executions)) return explored.failure();
    }
    for (Suite& suite : prey) {
        World explored(suite.bounds);
        const bool passed = suite.random > 0
                                ? explored.explore_random(*suite.program, 1, suite.random)
                                : explored.explore(*suite.program);
        if (!passed) return explored.failure();
    }
    return {};
}

struct OrderMutant {
    const char* name;
    std::memory_order* order;
    std::memory_order weaker;
    const char* equivalent = nullptr;  // why there is no difference to see
};

std::vector<OrderMutant> order_mutants() {
    using Order = ModelOrders;
    constexpr auto relaxed = std::memory_order_relaxed;
    constexpr auto acquire = std::memory_order_acquire;
    constexpr auto release = std::memory_order_release;
    return {
        {"store_tail relaxed", &Order::store_tail, relaxed},
        {"store_tail release", &Order::store_tail, release},
        {"read_tail relaxed", &Order::read_tail, relaxed},
        {"read_tail acquire", &Order::read_tail, acquire},
        {"store_head relaxed", &Order::store_head, relaxed},
        {"store_head release", &Order::store_head, release},
        {"read_head relaxed", &Order::read_head, relaxed},
        {"read_head acquire", &Order::read_head, acquire},
        {"bell_waiting relaxed", &Order::bell_waiting, relaxed},
        {"bell_waiting acq_rel", &Order::bell_waiting, std::memory_order_acq_rel},
        {"store_bits relaxed", &Order::store_bits, relaxed},
        {"store_journal relaxed", &Order::store_journal, relaxed},
        {"store_cursor relaxed", &Order::store_cursor, relaxed,
         "the bits and the head that are stored after a cursor are releases themselves, and "
         "recovery "
         "clears the bits below a cursor that came too early"},
        {"recover relaxed", &Order::recover, relaxed,
         "a consumer reads its own stores, or those of a predecessor whose death it has seen, "
         "which "
         "is an acquire edge"},
    };
}

bool run_order_mutants(Tier tier) {
    int caught = 0;
    int equivalent = 0;
    bool passed = true;
    for (const OrderMutant& mutant : order_mutants()) {
        if (mutant.equivalent != nullptr && tier == Tier::quick) continue;
        const std::memory_order real = *mutant.order;
        *mutant.order = mutant.weaker;
        const std::string found = hunt(suites(Tier::quick));
        *mutant.order = real;
        const bool as_told = found.empty() == (mutant.equivalent != nullptr);
        if (as_told) (found.empty() ? equivalent : caught)++;
        passed &= as_told;
        std::printf("order mutant %-26s %s%s%s\n", mutant.name,
                    as_told ? "" : "WRONG: ", found.empty() ? "survives: " : "caught: ",
                    !found.empty()                 ? found.c_str()
                    : mutant.equivalent != nullptr ? mutant.equivalent
                                                   : "nobody noticed");
        (void)std::fflush(stdout);
    }
    int misused = 0;
    for (Suite& suite : misuses()) {
        World explored(suite.bounds);
        const bool found = !explored.explore(*suite.program);
        misused += found ? 1 : 0;
        passed &= found;
        std::printf("misuse: a caller %s: %s\n", suite.name.c_str(),
                    found ? explored.failure().c_str() : "WRONG: nobody noticed");
    }
    std::printf("order mutants caught %d, equivalent %d, misuses caught %d\n", caught, equivalent,
                misused);
    return passed && caught >= 12;
}

bool parse(int argc, char** argv, Options& options) {
    for (int i = 1; i < argc; i++) {
        const std::string_view arg = argv[i];
        const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
        if (arg == "--full") {
            options.tier = Tier::full;
        } else if (arg == "--hunt") {
            options.hunt = true;
        } else if (arg == "--orders") {
            options.orders = true;
        } else if (arg == "--verbose") {
            options.verbose = true;
        } else if (arg == "--only") {
            options.only = value();
        } else if (arg == "--trail") {
            options.trail = value();
        } else if (arg == "--seed") {
            options.seed = std::strtoull(value(), nullptr, 10);
        } else if (arg == "--executions") {
            options.executions = std::strtoull(value(), nullptr, 10);
        } else {
            return false;
        }
    }
    return true;
}

int run(const Options& options) {
    if (options.hunt) {
        const std::string found = hunt(suites(Tier::quick));
        std::printf("%s\n", found.empty() ? "survives" : found.c_str());
        return found.empty() ? 0 : 3;
    }
    bool passed = true;
    Totals totals;
    int ran = 0;
    for (Suite& suite : suites(options.tier)) {
        if (!options.only.empty() && suite.name != options.only) continue;
        ran++;
        passed &=
            options.trail.empty() ? run_suite(suite, options, totals) : replay(suite, options);
    }
    if (options.orders) passed &= run_order_mutants(options.tier);
    std::printf("suites %d  executions %llu  crash points %llu  sleeps %llu  seed %llu: %s\n", ran,
                static_cast<unsigned long long>(totals.executions),
                static_cast<unsigned long long>(totals.crashes),
                static_cast<unsigned long long>(totals.sleeps),
                static_cast<unsigned long long>(options.seed), passed ? "passed" : "FAILED");
    return passed && ran > 0 ? 0 : 1;
}

}  // namespace
}  // namespace model

int main(int argc, char** argv) {
    model::Options options;
    if (!model::parse(argc, argv, options)) {
        (void)std::fputs(model::help, stderr);
        return 2;
    }
    return model::run(options);
}
