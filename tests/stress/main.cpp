// rollring-stress: everybody at once, killed and stopped, and an oracle that judges the promises.

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "report.hpp"
#include "wedge.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  rollring-stress                              ten minutes\n"
    "  rollring-stress --seconds 60 --hostile       one minute, with a producer that damages its "
    "lane\n"
    "  rollring-stress --kills 1000 --seed 7 --json a thousand kills, counts as JSON\n"
    "  rollring-stress --seconds 20 --plant flip    a lie, to see that the oracle finds it (exit 1)"
    "\n\nExit status: 0 all promises kept, 1 one is broken or a count is below its "
    "floor, 130 interrupted.";

const std::vector<std::string> lies = {"phantom", "flip",    "mixed",   "version",
                                       "silent",  "foreign", "twice",   "death",
                                       "unsaid",  "stale",   "overdue", "wedge"};

// --part ROLE RING BOARD PIPE LIFE SEED INDEX PLANT
int run_part(const std::vector<std::string>& words) {
    die_with_parent();
    static_cast<void>(std::signal(SIGINT, SIG_IGN));
    static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
    const Shared<Board> board(words.at(3));
    Journal journal(std::stoi(words.at(4)), std::stoull(words.at(5)));
    const Part part{.ring = words.at(2),
                    .seed = std::stoull(words.at(6)),
                    .plant = words.at(8),
                    .board = board.operator->()};
    const std::string& role = words.at(1);
    try {
        if (role == name(Role::producer)) return producer_part(part, journal);
        if (role == name(Role::hostile)) return hostile_part(part, journal);
        if (role == name(Role::trainer)) return trainer_part(part, journal);
        if (role == name(Role::publisher)) return publisher_part(part, journal);
        const auto index = static_cast<std::uint32_t>(std::stoul(words.at(7)));
        return subscriber_part(part, journal, index);
    } catch (const std::exception& failure) {
        journal.fail(failure.what());
        return 1;
    }
}

std::string replay(const Options& options) {
    std::string text = fmt::format(
        "rollring-stress --seed {} --seconds {} --producers {} "
        "--subscribers {} --shm-mib {}",
        options.seed, options.seconds, options.producers, options.subscribers, options.shm_mib);
    if (options.kills != 0) text += fmt::format(" --kills {}", options.kills);
    if (options.hostile) text += " --hostile";
    if (!options.fills) text += " --no-fills";
    if (options.floor_kills >= 0) text += fmt::format(" --floor-kills {}", options.floor_kills);
    if (options.floor_points != 0) text += fmt::format(" --floor-points {}", options.floor_points);
    if (!options.plant.empty()) text += " --plant " + options.plant;
    return text;
}

int run_all(const Options& options) {
    const bool private_shm = options.fills && make_private_shm(options.shm_mib);
    catch_interrupts();
    fmt::print(stderr, "{}\n", replay(options));
    if (options.fills && !private_shm) {
        fmt::print(stderr, "/dev/shm is not filled: no mount of our own is allowed here\n");
    }
    nlohmann::ordered_json out;
    int status = 0;
    {
        Driver driver(options, private_shm);
        std::string violation;
        try {
            driver.run();
        } catch (const Interrupted&) {
            status = 130;
        } catch (const std::exception& failure) {
            violation = failure.what();
            status = 1;
        }
        if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\x1b[K");
        out = report(driver);
        out["seed"] = options.seed;
        out["violations"] = violation.empty() ? 0 : 1;
        out["violation"] = violation;
        out["below_floor"] = nlohmann::json::array();
        // A lie that is not found must not fail for anything else.
        if (status == 0 && options.plant.empty()) {
            out["below_floor"] = below_floors(options, driver);
            for (const auto& what : out["below_floor"]) {
                fmt::print(stderr, "BELOW THE FLOOR: {}\n", what.get<std::string>());
                status = 1;
            }
        }
        if (!violation.empty()) fmt::print(stderr, "VIOLATION: {}\n", violation);
    }
    const std::size_t left = shm_leftovers();
    out["leftovers"] = left;
    if (left != 0) status = 1;
    out["replay"] = replay(options);
    print(out, options.json);
    if (status == 1) {
        fmt::print(stderr, "seed {}; again: {}\n", options.seed, replay(options));
    }
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "--part") return run_part({argv + 1, argv + argc});
    Options options;
    options.seed = static_cast<std::uint64_t>(monotonic_ns());
    CLI::App app(
        "Kills, stops and restarts producers, a trainer and both ends of the weight "
        "channel, and checks from outside that every promise is kept. In a build with "
        "-Dfault_points=true half of them are to strike themselves at a fault point.");
    app.footer(examples);
    app.add_option("--seconds", options.seconds, "how long (default 600)")
        ->check(CLI::PositiveNumber);
    app.add_option("--kills", options.kills, "end earlier, after so many kills");
    app.add_option("--seed", options.seed, "of all dice (default: the clock)");
    app.add_option("--producers", options.producers, "rollout workers (default 3)")
        ->check(CLI::Range(1, 64));
    app.add_option("--subscribers", options.subscribers,
                   "engines (default 2); 0: no weight channel")
        ->check(CLI::Range(0, 16));
    app.add_flag("--hostile", options.hostile, "one more producer, which damages its own lane");
    app.add_option("--floor-kills", options.floor_kills,
                   "fail with fewer (default: 20000 from ten minutes on, else 5 a second; none "
                   "with --kills)")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--floor-points", options.floor_points,
                   "fail if processes struck themselves at fewer fault points (default 0; needs a "
                   "build with -Dfault_points=true)");
    bool no_fills = false;
    app.add_flag("--no-fills", no_fills, "fill neither the ring nor /dev/shm");
    app.add_option("--shm-mib", options.shm_mib,
                   "bytes of the private /dev/shm that is filled (default 128)")
        ->check(CLI::Range(8, 65536));
    app.add_option("--plant", options.plant, "plant a lie")->check(CLI::IsMember(lies));
    app.add_flag("--json", options.json, "counts as JSON");
    CLI11_PARSE(app, argc, argv);
    options.fills = !no_fills;
    if (options.plant == "wedge" && wedge_is_linked == nullptr) {
        fmt::print(stderr, "only rollring-stress-wedge tells this lie\n");
        return 2;
    }
    try {
        return run_all(options);
    } catch (const std::exception& failure) {
        fmt::print(stderr, "rollring-stress: {}\n", failure.what());
        return 1;
    }
}
