// Every FAULT_POINT("weights.…") of the sources, struck by SIGKILL, SIGSTOP (then SIGCONT) and
// _exit, in whichever process comes by, with live peers.
//
//   fault_weights SOURCE_ROOT [--only POINT] [--action kill|stop|exit] [--share I --of N] [--gpu]
//                             [--direct]

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "weights_fault_cases.hpp"
#include "weights_roles.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// A point, the role that passes it (trainer or engine), and the number of the visit at which it
// strikes.
struct Point {
    const char* name;
    bool trainer;
    std::vector<int> hits;
    std::uint32_t ranks = 1;
    bool delta = false;
};

const std::vector<Point> points = {
    {"weights.begun", true, {1, 3}},
    {"weights.slot_taken", true, {1, 3, 20}},
    {"weights.packed", true, {1, 2, 20}},
    {"weights.published", true, {1, 3}},
    {"weights.staged_seen", true, {1, 3}},
    {"weights.decided", true, {1, 3}},
    {"weights.committed", true, {1, 3}},
    {"weights.stamped", true, {1, 3}},
    {"weights.begun", true, {2}, 2},
    {"weights.published", true, {2}, 2},
    {"weights.staged_seen", true, {2}, 2},
    {"weights.voted", true, {1, 3}, 2},
    {"weights.decided", true, {2}, 2},
    {"weights.committed", true, {2}, 2},
    {"weights.stamped", true, {2}, 2},
    {"weights.admitted", false, {1, 2}},
    {"weights.attached", false, {1, 2}},
    {"weights.seen", false, {1, 3}},
    {"weights.part_seen", false, {1, 2, 15}},
    {"weights.reading", false, {1, 2, 15}},
    {"weights.read_done", false, {1, 2, 15}},
    {"weights.staged", false, {1, 3}},
    {"weights.commit_seen", false, {1, 3}},
    {"weights.live", false, {1, 3}},
    {"weights.closing", false, {1}},
    {"weights.compared", false, {1, 2, 15}, 1, true},
    {"weights.swapped", false, {1, 2, 15}, 1, true},
    {"weights.staged", false, {2}, 1, true},
    {"weights.commit_seen", false, {2}, 1, true},
    {"weights.rolled_back", false, {1}, 1, true},
    {"weights.decided", true, {2}, 1, true},
    {"weights.committed", true, {2}, 1, true},
    {"weights.swapped", false, {2}, 2, true},
};

std::set<std::string> named_in_sources(const std::filesystem::path& root) {
    const std::regex call(R"re(FAULT_POINT\("(weights\.[a-z_]+)"\);)re");
    std::set<std::string> names;
    for (const char* folder : {"weights", "cuda", "device"}) {
        for (const auto& entry :
             std::filesystem::recursive_directory_iterator(root / "lib" / folder)) {
            if (entry.path().extension() != ".cpp" && entry.path().extension() != ".hpp") continue;
            std::stringstream text;
            text << std::ifstream(entry.path()).rdbuf();
            const std::string all = text.str();
            for (std::sregex_iterator found(all.begin(), all.end(), call), end; found != end;
                 ++found) {
                names.insert((*found)[1]);
            }
        }
    }
    return names;
}

void check_table(const std::filesystem::path& root) {
    std::set<std::string> here;
    for (const Point& point : points) here.insert(point.name);
    const std::set<std::string> there = named_in_sources(root);
    for (const std::string& name : there) {
        require(here.contains(name), "FAULT_POINT(\"{}\") is not in the table", name);
    }
    for (const std::string& name : here) {
        require(there.contains(name), "{} is in the table and not in the sources", name);
    }
}

// The moments differ from round to round, and so does the work of the others.
constexpr int rounds_default = 4;
constexpr int strikes_min = 20;  // of each named point

void print_totals(std::uint64_t runs, Totals& totals) {
    fmt::print("points={} runs={} syncs={} resent={} poisoned={} kept_old={} expelled={}\n",
               points.size(), runs, totals.syncs, totals.resent, totals.poisoned, totals.kept_old,
               totals.expelled);
    fmt::print("told: timed_out={} peer_gone={} expelled={} aborted={} rejected={} busy={}\n",
               totals.told[Errc::timed_out], totals.told[Errc::peer_gone],
               totals.told[Errc::expelled], totals.told[Errc::aborted], totals.told[Errc::rejected],
               totals.told[Errc::busy]);
}

int run_all(const std::vector<std::string>& arguments) {
    check_table(arguments.at(0));
    const auto only = std::ranges::find(arguments, "--only");
    const auto action_only = std::ranges::find(arguments, "--action");
    const bool gpu = std::ranges::find(arguments, "--gpu") != arguments.end();
    const bool direct = std::ranges::find(arguments, "--direct") != arguments.end();
    const auto rounds_said = std::ranges::find(arguments, "--rounds");
    const int rounds =
        rounds_said == arguments.end() ? rounds_default : std::stoi(*(rounds_said + 1));
    const std::uint64_t share = option(arguments, "--share", 0);
    const std::uint64_t shares = option(arguments, "--of", 1);
    std::uint64_t runs = 0;
    std::uint64_t number = 0;
    std::map<std::string, int> strikes;
    Totals totals;
    for (const Point& point : points) {
        if (only != arguments.end() && *(only + 1) != point.name) continue;
        if (number++ % shares != share) continue;
        std::map<std::string, int> struck;
        for (const char* action : {"kill", "stop", "exit"}) {
            if (action_only != arguments.end() && *(action_only + 1) != action) continue;
            for (std::size_t i = 0; i < point.hits.size() * static_cast<std::size_t>(rounds); i++) {
                // A version in one part passes few points: late ones may be an engine's last.
                constexpr int direct_most = 3;
                const int said = point.hits[i % point.hits.size()];
                const int hit = direct ? std::min(said, direct_most) : said;
                // One trainer alone is one victim; else both ranks, or both kinds of engine.
                for (std::uint32_t victim = 0; victim < 2; victim++) {
                    if (point.trainer && victim >= point.ranks) continue;
                    if (point.name == std::string("weights.voted") && victim == 0) continue;
                    const FaultCase fault{.plan = fmt::format("{}:{}:{}", point.name, action, hit),
                                          .stop = std::string(action) == "stop",
                                          .closing = point.name == std::string("weights.closing"),
                                          .victim = victim};
                    const Crew crew{.engines = 2,
                                    .ranks = point.ranks,
                                    .gpu = gpu,
                                    .direct = direct,
                                    .delta = point.delta};
                    try {
                        point.trainer ? strike_trainer(fault, crew, totals)
                                      : strike_engine(fault, crew, totals);
                    } catch (const Failure& failure) {
                        throw Failure(fmt::format("{} victim {} of {} ranks: {}", fault.plan,
                                                  victim, point.ranks, failure.what()));
                    }
                    struck[action]++;
                    strikes[point.name]++;
                    runs++;
                }
            }
        }
        fmt::print("{:20} ranks={} kill={} stop={} exit={}\n", point.name, point.ranks,
                   struck["kill"], struck["stop"], struck["exit"]);
        static_cast<void>(std::fflush(stdout));
    }
    print_totals(runs, totals);
    require(runs > 0, "no such point");
    const bool all = only == arguments.end() && action_only == arguments.end();
    for (const auto& [point, count] : strikes) {
        require(!all || rounds < rounds_default || count >= strikes_min,
                "{}: struck {} times, below the floor of {}", point, count, strikes_min);
    }
    fmt::print("leftovers in /dev/shm: {}\n", weights_leftovers());
    return weights_leftovers() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (arguments.at(0) == "--trainer") return trainer_role(arguments);
        if (arguments.at(0) == "--engine") return engine_role(arguments);
        return run_all(arguments);
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED (process {}): {}\n", getpid(), failure.what());
        return 1;
    }
}
