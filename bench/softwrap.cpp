// Question: what is it worth that a drained lane turns back early and stays in cache?

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <vector>

#include "workload.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::vector<std::uint32_t> tokens = {128, 512, 2048};
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::uint64_t records = 0;
};

struct Row {
    std::uint32_t n_tokens;
    std::vector<double> on;
    std::vector<double> off;
    std::vector<double> gain;
    // The limit's hand-off over buffers of the soft wrap's bytes, over that of buffers as a lane.
    std::vector<double> bare_gain;
    std::vector<double> line_ns;
    std::int64_t laps_on = 0;
    std::int64_t laps_off = 0;
};

Row measure_length(const Options& options, std::uint32_t n_tokens, const Cpus& cpus,
                   Progress& progress) {
    RingTransport on;
    on.lane_bytes = parse_bytes(options.lane_bytes);
    on.soft_bytes = parse_bytes(options.soft_bytes);
    RingTransport off = on;
    off.soft_bytes = off.lane_bytes;  // never
    Plan plan{.n_tokens = n_tokens};
    // A whole lap of the lane first: its pages are then in both processes' tables.
    plan.warmup = on.lane_bytes / plan.record_bytes() + 8;
    const BareHandoff near(n_tokens, on.soft_bytes);
    const BareHandoff far(n_tokens, on.lane_bytes);
    plan.records = options.records != 0
                       ? options.records
                       : calibrate(near.transport(), plan, cpus, options.common.seconds);
    Row row{.n_tokens = n_tokens};
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("soft wrap on, {} tokens", n_tokens));
        const Measured with = measure_ring(on, plan, cpus);
        progress.step(fmt::format("soft wrap off, {} tokens", n_tokens));
        const Measured without = measure_ring(off, plan, cpus);
        progress.step(fmt::format("limit, {} tokens", n_tokens));
        const double limit = measure(near.transport(), plan, cpus).tokens_per_s /
                             measure(far.transport(), plan, cpus).tokens_per_s;
        if (interrupted()) break;
        row.on.push_back(with.tokens_per_s);
        row.off.push_back(without.tokens_per_s);
        row.gain.push_back(with.tokens_per_s / without.tokens_per_s);
        row.bare_gain.push_back(limit);
        row.line_ns.push_back(with.line_ns);
        row.line_ns.push_back(without.line_ns);
        row.laps_on = with.figures[1];
        row.laps_off = without.figures[2];
    }
    return row;
}

Json to_json(const Row& row) {
    return {{"tokens", row.n_tokens},
            {"on_tokens_per_s", Spread::of(row.on).json()},
            {"off_tokens_per_s", Spread::of(row.off).json()},
            {"gain", Spread::of(row.gain).json()},
            {"bare_gain", Spread::of(row.bare_gain).json()},
            {"line_ns", Spread::of(row.line_ns).json()},
            {"laps_soft_when_on", row.laps_on},
            {"laps_full_when_off", row.laps_off}};
}

void print(const Row& row) {
    const Spread gain = Spread::of(row.gain);
    const Spread bare = Spread::of(row.bare_gain);
    const Spread line = Spread::of(row.line_ns);
    const auto gigabytes = [](const std::vector<double>& tokens_per_s) {
        return Spread::of(tokens_per_s).median * token_bytes / 1e9;
    };
    fmt::print(
        "{:>7} {:>6.1f} {:>6.1f}   {:.2f} [{:.2f}-{:.2f}]   {:.2f} [{:.2f}-{:.2f}] {:>6.0f} "
        "[{:.0f}-{:.0f}]\n",
        row.n_tokens, gigabytes(row.on), gigabytes(row.off), gain.median, gain.low, gain.high,
        bare.median, bare.low, bare.high, line.median, line.low, line.high);
}

void run(const Options& options) {
    const Cpus cpus = options.common.choose_cpus();
    std::vector<Row> rows;
    {
        Progress progress(3 * options.tokens.size() * options.common.repeat);
        for (const std::uint32_t n_tokens : options.tokens) {
            if (n_tokens == 0) fail("--tokens: a record needs tokens");
            rows.push_back(measure_length(options, n_tokens, cpus, progress));
        }
    }
    if (options.common.json) {
        Json out = {{"question", "softwrap"},
                    {"machine", machine(cpus)},
                    {"lane_bytes", options.lane_bytes},
                    {"soft_bytes", options.soft_bytes}};
        for (const Row& row : rows) out["rows"].push_back(to_json(row));
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print("{}\nlane {}, soft wrap at {}; {} alternating rounds\n", machine_line(cpus),
               options.lane_bytes, options.soft_bytes, options.common.repeat);
    fmt::print("{:>7} {:>6} {:>6}   {:<16}   {:<16} {:>6}\n", "tokens", "on", "off", "gain",
               "bare, near/far", "line");
    fmt::print("{:>7} {:>6} {:>6}   {:<16}   {:<16} {:>6}\n", "/record", "GB/s", "GB/s", "", "",
               "ns");
    for (const Row& row : rows) print(row);
}

}  // namespace

void add_softwrap(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("softwrap", "the same run with soft wrap on and off");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->tokens, "tokens per record")
        ->capture_default_str()
        ->delimiter(',');
    sub->add_option("--lane-bytes", options->lane_bytes, "capacity of the lane")
        ->capture_default_str();
    sub->add_option("--soft-bytes", options->soft_bytes, "where it turns back when on")
        ->capture_default_str();
    sub->add_option("--records", options->records, "records per run, instead of --seconds");
    sub->callback([options] { run(*options); });
}

}  // namespace bench
