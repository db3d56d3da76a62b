// Every named fault point, struck by SIGKILL, SIGSTOP (then SIGCONT) and _exit, with live peers.
// The table below must name every FAULT_POINT of the sources, and every one must be hit.
//
//   fault_points SOURCE_ROOT [--only POINT] [--rounds N] [--seed N] [--share I --of N]

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "fault_runs.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct Point {
    const char* name;
    bool (*run)(const Fault& fault, Dice& dice);  // true if it was struck
    std::vector<int> hits;
};

const std::vector<Point> points = {
    {"create.after_open", create_run, {1}},
    {"create.after_claim", create_run, {1}},
    {"create.after_allocate", create_run, {1}},
    {"create.before_ready", create_run, {1}},
    {"create.before_clear", create_run, {1}},
    {"remove.before_unlink", remove_run, {1}},
    {"open.after_lock", producer_run, {1}},
    {"open.after_keep", producer_run, {1}},
    {"open.after_reserve", producer_run, {1}},
    {"open.before_epoch", producer_run, {1}},
    {"open.after_epoch", producer_run, {1}},
    {"write.before", producer_run, {1, 2, 30}},
    {"write.after", producer_run, {1, 2, 30}},
    {"commit.before", producer_run, {1, 2, 30, 100}},
    {"commit.after", producer_run, {1, 2, 30, 60}},
    {"wake.after", producer_run, {1, 2, 30}},
    {"room.before_sleep", producer_run, {1}},
    {"close.before_state", producer_run, {1}},
    {"close.after_state", producer_run, {1}},
    {"seat.after_lock", consumer_run, {1}},
    {"join.after_recover", consumer_run, {1, 2, 3}},
    {"recover.before_journal", consumer_run, {1}},
    {"recover.while_marking", consumer_run, {1}},
    {"recover.after_journal", consumer_run, {1}},
    {"poll.before_account", consumer_run, {1, 2, 50}},
    {"wait.before_sleep", consumer_run, {1}},
    {"release.before", consumer_run, {1, 2, 20}},
    {"release.after", consumer_run, {1, 2, 20}},
    {"ack.before_journal", consumer_run, {1, 5}},
    {"ack.while_marking", consumer_run, {1, 2, 3, 20}},
    {"ack.before_advance", consumer_run, {1, 5}},
    {"ack.after", consumer_run, {1, 5}},
    {"retire.after_start_over", consumer_run, {1}},
    {"retire.after_restart", consumer_run, {1}},
    {"retire.after_give_back", consumer_run, {1}},
    {"retire.before_epoch", consumer_run, {1, 2, 3}},
    {"evacuate.after_copy", stash_run, {1, 2, 5}},
    {"evacuate.before_journal", stash_run, {1, 2, 5}},
    {"evacuate.before_tail", stash_run, {1, 2, 5}},
    {"evacuate.after_tail", stash_run, {1, 2, 5}},
    {"evacuate.after_mark", stash_run, {1, 2, 5}},
    {"evacuate.before_advance", stash_run, {1, 2, 5}},
    {"evacuate.after", stash_run, {1, 2, 5}},
    {"compact.after_copy", stash_run, {1, 2, 5}},
    {"compact.before_journal", stash_run, {1, 2, 5}},
    {"compact.before_tail", stash_run, {1, 2, 5}},
    {"compact.after_tail", stash_run, {1, 2, 5}},
    {"compact.after_mark", stash_run, {1, 2, 5}},
    {"compact.before_advance", stash_run, {1, 2, 5}},
    {"ack.after_tombstones", stash_run, {1, 2, 5}},
    {"ack.before_journal", stash_run, {1, 2, 5}},
    {"ack.while_marking", stash_run, {1, 2, 5}},
    {"ack.before_advance", stash_run, {1, 2, 5}},
    {"ack.after", stash_run, {1, 2, 5}},
    {"ack.after_account", stash_run, {1, 2, 5}},
    {"cut.before_lease", stash_run, {1, 2, 5}},
    {"cut.after_lease", stash_run, {1, 2, 5}},
    {"nack.before", stash_run, {1, 2, 5}},
    {"nack.before_account", stash_run, {1, 2, 5}},
    {"nack.after", stash_run, {1, 2, 5}},
    {"drop.before", stash_run, {1, 2, 5}},
    {"drop.after", stash_run, {1, 2, 5}},
    {"spill.after_tail_again", stash_run, {1}},
    {"join.after_recover", stash_run, {1}},
    {"recover.before_journal", stash_run, {1}},
    {"recover.while_marking", stash_run, {1}},
    {"recover.after_journal", stash_run, {1}},
    {"admit.before_sleep", admit_run, {1}},
    {"bound.in_turn", bound_run, {1, 2, 20}},
    {"bound.claimed", bound_run, {1, 2, 20}},
    {"create.after_open", request_object_run, {1}},
    {"create.after_claim", request_object_run, {1}},
    {"create.after_allocate", request_object_run, {1}},
    {"companion.before_ready", request_object_run, {1}},
    {"create.before_clear", request_object_run, {1}},
    {"create.after_claim", request_remade_run, {1}},
    {"companion.before_ready", request_remade_run, {1}},
    {"remove.after_unlink", request_removal_run, {1}},
    {"requests.seat_taken", request_run, {1}},
    {"requests.taken", request_run, {1, 2, 5}},
    {"requests.before_finish", request_run, {1, 2, 5}},
    {"requests.finished", request_run, {1, 2, 5}},
    {"requests.before_post", request_run, {1, 2, 5}},
    {"requests.after_post", request_run, {1, 2, 5}},
    {"share.seat_taken", share_run, {1}},
    {"share.held", share_run, {1, 2, 5}},
    {"share.let_go", share_run, {1, 2, 5}},
    {"share.before_word", share_run, {1, 2, 5}},
    {"share.after_word", share_run, {1, 2, 5}},
    {"share.recalled", share_run, {1, 2, 5}},
    {"share.ended", share_run, {1, 2, 5}},
    {"store.replaced", store_run, {1, 2, 20}},
    {"store.cleared", store_run, {1, 2, 20}},
};

// Every FAULT_POINT("name") of the folders that may have some; those of the weight channel have a
// program of their own (weights_fault_points.cpp).
std::set<std::string> named_in_sources(const std::filesystem::path& root) {
    const std::regex call(R"re(FAULT_POINT\("([a-z_.]+)"\);)re");
    std::set<std::string> names;
    for (const char* folder : {"lib", "producer", "consumer", "stash", "extras"}) {
        if (!std::filesystem::exists(root / folder)) continue;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
            if (entry.path().extension() != ".cpp" && entry.path().extension() != ".hpp") continue;
            std::stringstream text;
            text << std::ifstream(entry.path()).rdbuf();
            const std::string all = text.str();
            for (std::sregex_iterator found(all.begin(), all.end(), call), end; found != end;
                 ++found) {
                const std::string name = (*found)[1];
                if (!name.starts_with("weights.")) names.insert(name);
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

int run_all(const std::vector<std::string>& arguments) {
    check_table(arguments.at(0));
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    const std::string only =
        arguments.size() > 2 && arguments[1] == "--only" ? arguments[2] : std::string();
    const std::uint64_t rounds = option(arguments, "--rounds", 1);
    const std::uint64_t share = option(arguments, "--share", 0);
    const std::uint64_t shares = option(arguments, "--of", 1);
    Dice dice{seed};
    fmt::print("fault_points --seed {} --rounds {}\n", seed, rounds);
    std::uint64_t runs = 0;
    std::uint64_t tried = 0;
    for (std::size_t i = 0; i < points.size(); i++) {
        const Point& point = points[i];
        if (only.empty() ? i % shares != share : only != point.name) continue;
        tried++;
        std::map<std::string, int> struck;
        const std::string_view actions[] = {"kill", "stop", "exit"};
        for (std::uint64_t round = 0; round < rounds * std::size(actions); round++) {
            const std::string action(actions[round % std::size(actions)]);
            for (const int hit : point.hits) {
                const Fault fault{point.name, action, hit};
                try {
                    require(point.run(fault, dice), "it was not hit");
                } catch (const Failure& failure) {
                    throw Failure(fmt::format("{}: {}", fault.plan(), failure.what()));
                }
                struck[action]++;
                runs++;
            }
        }
        fmt::print("{:26} kill={} stop={} exit={}\n", point.name, struck["kill"], struck["stop"],
                   struck["exit"]);
        static_cast<void>(std::fflush(stdout));
    }
    fmt::print("points={} runs={} leftovers={}\n", tried, runs, leftovers());
    require(tried > 0 && runs >= rounds * 3 * tried, "{} points, only {} runs", tried, runs);
    return leftovers() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (const auto role = fault_role(arguments)) return role();
        return run_all(arguments);
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED (process {}): {}\n", getpid(), failure.what());
        return 1;
    }
}
