// Question: what is it worth that a drained lane turns back early and stays in cache?

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "workload.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::uint32_t n_tokens = 2048;
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::uint64_t records = 0;
};

struct Result {
    std::vector<double> on;
    std::vector<double> off;
    std::vector<double> gain;
    std::vector<double> line_ns;
    std::int64_t laps_on = 0;
    std::int64_t laps_off = 0;
};

Result measure_both(const Options& options, const Cpus& cpus) {
    RingTransport on;
    on.lane_bytes = parse_bytes(options.lane_bytes);
    on.soft_bytes = parse_bytes(options.soft_bytes);
    RingTransport off = on;
    off.soft_bytes = off.lane_bytes;  // never
    Plan plan{.n_tokens = options.n_tokens};
    // A whole lap of the lane first: its pages are then in both processes' tables.
    plan.warmup = on.lane_bytes / plan.record_bytes() + 8;
    const BareHandoff bare(options.n_tokens, on.soft_bytes);
    plan.records = options.records != 0
                       ? options.records
                       : calibrate(bare.transport(), plan, cpus, options.common.seconds);
    Result result;
    Progress progress(2 * options.common.repeat);
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step("soft wrap on");
        const Measured with = measure_ring(on, plan, cpus);
        progress.step("soft wrap off");
        const Measured without = measure_ring(off, plan, cpus);
        if (interrupted()) break;
        result.on.push_back(with.tokens_per_s);
        result.off.push_back(without.tokens_per_s);
        result.gain.push_back(with.tokens_per_s / without.tokens_per_s);
        result.line_ns.push_back(with.line_ns);
        result.line_ns.push_back(without.line_ns);
        result.laps_on = with.figures[1];
        result.laps_off = without.figures[2];
    }
    return result;
}

void run(const Options& options) {
    const Cpus cpus = options.common.choose_cpus();
    const Result result = measure_both(options, cpus);
    const Spread on = Spread::of(result.on);
    const Spread off = Spread::of(result.off);
    const Spread gain = Spread::of(result.gain);
    const Spread line = Spread::of(result.line_ns);
    if (options.common.json) {
        const Json out = {{"question", "softwrap"},
                          {"machine", machine(cpus)},
                          {"tokens", options.n_tokens},
                          {"lane_bytes", options.lane_bytes},
                          {"soft_bytes", options.soft_bytes},
                          {"on_tokens_per_s", on.json()},
                          {"off_tokens_per_s", off.json()},
                          {"gain", gain.json()},
                          {"line_ns", line.json()},
                          {"laps_soft_when_on", result.laps_on},
                          {"laps_full_when_off", result.laps_off}};
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print("{}\n{} tokens a record, lane {}, soft wrap at {}; {} alternating rounds\n",
               machine_line(cpus), options.n_tokens, options.lane_bytes, options.soft_bytes,
               options.common.repeat);
    const double gigabytes = token_bytes / 1e9;
    fmt::print("on   {:>6.0f} Mtok/s {:>5.1f} GB/s ({} soft laps)\n", on.median / 1e6,
               on.median * gigabytes, result.laps_on);
    fmt::print("off  {:>6.0f} Mtok/s {:>5.1f} GB/s ({} full laps)\n", off.median / 1e6,
               off.median * gigabytes, result.laps_off);
    fmt::print("gain {:.2f} [{:.2f}-{:.2f}]; cache line {:.0f} ns [{:.0f}-{:.0f}]\n", gain.median,
               gain.low, gain.high, line.median, line.low, line.high);
}

}  // namespace

void add_softwrap(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("softwrap", "the same run with soft wrap on and off");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->n_tokens, "tokens per record")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 22));
    sub->add_option("--lane-bytes", options->lane_bytes, "capacity of the lane")
        ->capture_default_str();
    sub->add_option("--soft-bytes", options->soft_bytes, "where it turns back when on")
        ->capture_default_str();
    sub->add_option("--records", options->records, "records per run, instead of --seconds");
    sub->callback([options] { run(*options); });
}

}  // namespace bench
