// rollring-scale: a run of many nodes in simulated time, over the real ring and stash of its
// trainer (docs/scale.md). A program of its own, because the clock of its process is not the
// machine's.

#include <fmt/core.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <string>
#include <vector>

#include "row.hpp"

namespace bench::scale {
namespace {

struct Asked {
    Settings settings;
    std::vector<std::uint32_t> nodes;
    bool json = false;
    bool csv = false;
    bool keep_lost = false;
};

template <class T>
CLI::Option* option(CLI::App& app, const char* name, T& value, const char* what) {
    return app.add_option(name, value, what)->capture_default_str();
}

void add_run(CLI::App& app, Asked& asked) {
    Settings& run = asked.settings;
    app.add_option("--nodes", asked.nodes, "with workers; several: a run for each")
        ->delimiter(',')
        ->check(CLI::Range(1, 4096))
        ->default_str("10");
    option(app, "--workers", run.workers, "of a node, one rollout at a time each")
        ->check(CLI::Range(1, 65'535));
    option(app, "--rings", run.rings, "each beside a rank of the trainer")
        ->check(CLI::Range(1, 64));
    option(app, "--link-gbit", run.link_gbit, "of each node, each way")->check(CLI::PositiveNumber);
    option(app, "--tokens-per-s", run.tokens_per_s, "of a worker")->check(CLI::PositiveNumber);
    option(app, "--length-median", run.length_median, "tokens of a rollout, lognormal")
        ->check(CLI::PositiveNumber);
    option(app, "--length-sigma", run.length_sigma, "of the logarithm")
        ->check(CLI::NonNegativeNumber);
    option(app, "--length-most", run.length_most, "where it is cut")
        ->check(CLI::Range(16, 1 << 22));
    option(app, "--token-bytes", run.token_bytes, "9: ids, logprobs, mask; 393 and 969: experts")
        ->check(CLI::PositiveNumber);
    option(app, "--group-size", run.group_size, "members")->check(CLI::Range(1, 64));
    option(app, "--train-ns", run.train_ns, "of a token, all ranks; 0: by --train-load")
        ->check(CLI::NonNegativeNumber);
    option(app, "--train-load", run.train_load, "it keeps up with workers that are so busy")
        ->check(CLI::PositiveNumber);
    option(app, "--batch-groups", run.batch_groups,
           "of all ranks; 0: a fourth of those that workers can have under way");
}

void add_memory(CLI::App& app, Asked& asked) {
    Settings& run = asked.settings;
    const auto bytes = [&](const char* name, std::uint64_t& value, const char* what) {
        option(app, name, value, what)->transform(CLI::AsSizeValue(false));
    };
    bytes("--lane-bytes", run.lane_bytes, "of the trainer's ring and the nodes'");
    bytes("--spill-bytes", run.spill_bytes, "0: the ring's default");
    bytes("--machine-bytes", run.machine_bytes, "of /dev/shm on the trainer's machine");
    bytes("--object-store-bytes", run.object_store_bytes, "under way, all nodes together");
    bytes("--parcel-bytes", run.parcel_bytes, "Fabric's batch_bytes");
    option(app, "--open-groups", run.open_groups, "the bound of one stash; 0: its default");
    option(app, "--deadline-s", run.deadline_s, "of a group")->check(CLI::PositiveNumber);
    option(app, "--byte-scale", run.byte_scale,
           "the real ring and its records are so much smaller; 0: as fits into 8 GiB");
}

void add_costs(CLI::App& app, Asked& asked) {
    Settings& run = asked.settings;
    const auto cost = [&](const char* name, double& value, const char* what) {
        option(app, name, value, what)->check(CLI::NonNegativeNumber);
    };
    cost("--round-trip-us", run.round_trip_us, "of a call of an actor on another node");
    cost("--ask-us", run.ask_us, "of the receiver's process, for a place");
    cost("--parcel-us", run.parcel_us, "of the receiver's process, for a parcel");
    cost("--record-us", run.record_us, "of the receiver's process, for a record in it");
    cost("--forward-us", run.forward_us, "of a forwarder's process, for a parcel");
    cost("--linger-us", run.linger_us, "Fabric's linger");
    option(app, "--copy-gb", run.copy_gb, "GB/s into the trainer's ring")
        ->check(CLI::PositiveNumber);
}

void add_course(CLI::App& app, Asked& asked) {
    Settings& run = asked.settings;
    option(app, "--loss-share", run.loss_share, "of the nodes, at least one; 0: none")
        ->check(CLI::Range(0.0, 1.0));
    option(app, "--detect-s", run.detect_s, "until it is known that a node is gone")
        ->check(CLI::NonNegativeNumber);
    app.add_flag("--keep-lost", asked.keep_lost, "do not generate lost rollouts again");
    option(app, "--warm-s", run.warm_s, "simulated, before it is measured")
        ->check(CLI::PositiveNumber);
    option(app, "--measure-s", run.measure_s, "and while it is")->check(CLI::PositiveNumber);
    option(app, "--after-s", run.after_s, "after the loss")->check(CLI::NonNegativeNumber);
    option(app, "--seed", run.seed, "same seed, same run");
    auto* json = app.add_flag("--json", asked.json, "one JSON object");
    app.add_flag("--csv", asked.csv, "a line a run")->excludes(json);
}

std::string csv_of(const Json& rows) {
    std::string text;
    for (const Json& row : rows) {
        std::string titles;
        std::string line;
        for (const auto& [name, value] : row.items()) {
            titles += (titles.empty() ? "" : ",") + name;
            line += (line.empty() ? "" : ",") +
                    (value.is_string() ? value.get<std::string>() : value.dump());
        }
        if (text.empty()) text = titles + "\n";
        text += line + "\n";
    }
    return text;
}

// A descriptor for each producer of the real ring.
void raise_descriptors() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

int run(Asked& asked) {
    raise_descriptors();
    asked.settings.redo = !asked.keep_lost;
    if (asked.nodes.empty()) asked.nodes.push_back(asked.settings.nodes);
    Json out = {{"question", "scale"}, {"seed", asked.settings.seed}};
    bool broken = false;
    for (const std::uint32_t nodes : asked.nodes) {
        asked.settings.nodes = nodes;
        const Outcome outcome = simulate(asked.settings);
        for (const std::string& what : outcome.broken) {
            fmt::print(stderr, "rollring-scale: {} nodes: must not be: {}\n", nodes, what);
        }
        broken |= !outcome.broken.empty();
        out["rows"].push_back(row_of(asked.settings, outcome));
    }
    if (asked.csv) {
        fmt::print("{}", csv_of(out["rows"]));
    } else {
        print_report(out, asked.json);
    }
    return broken ? 1 : 0;
}

}  // namespace
}  // namespace bench::scale

int main(int argc, char** argv) {
    CLI::App app("A run of many nodes in simulated time, over the trainer's real ring and stash");
    bench::scale::Asked asked;
    bench::scale::add_run(app, asked);
    bench::scale::add_memory(app, asked);
    bench::scale::add_costs(app, asked);
    bench::scale::add_course(app, asked);
    app.footer(
        "Examples:\n"
        "  rollring-scale --nodes 1,10,100                 how a run grows\n"
        "  rollring-scale --nodes 500 --rings 4 --json     several rings\n"
        "  rollring-scale --token-bytes 969 --lane-bytes 512MiB --link-gbit 400");
    rollring::cli::catch_interrupts();
    try {
        CLI11_PARSE(app, argc, argv);
        return bench::scale::run(asked);
    } catch (const bench::scale::Interrupted&) {
        return rollring::cli::interrupt_exit();
    } catch (const std::exception& error) {
        fmt::print(stderr, "rollring-scale: {}\n", error.what());
        return 1;
    }
}
