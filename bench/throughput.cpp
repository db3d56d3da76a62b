// Question: how close is rollring to the limit, a bare two-process hand-off of the same bytes?

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "workload.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::vector<std::uint32_t> tokens = {256, 2048, 16'384, 131'072};
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::uint64_t records = 0;
    std::uint32_t batch = 1;
    bool wait = false;
};

struct Row {
    std::uint32_t n_tokens;
    std::vector<double> limit;
    std::vector<double> ring;
    std::vector<double> ratio;
    std::vector<double> line_ns;
    std::array<std::int64_t, 8> figures{};
};

Row measure_length(const Options& options, std::uint32_t n_tokens, const Cpus& cpus,
                   Progress& progress) {
    RingTransport ring;
    ring.lane_bytes = parse_bytes(options.lane_bytes);
    ring.soft_bytes = parse_bytes(options.soft_bytes);
    ring.sleeping = options.wait;
    // The same working set: as many buffers as a lane of the soft length holds records.
    const BareHandoff bare(n_tokens, std::min(ring.soft_bytes, ring.lane_bytes));
    Plan plan{.n_tokens = n_tokens, .batch = options.batch};
    const std::uint64_t working = std::min(ring.soft_bytes, ring.lane_bytes);
    plan.warmup = std::max<std::uint64_t>(8, 2 * working / plan.record_bytes());
    plan.records = options.records != 0
                       ? options.records
                       : calibrate(bare.transport(), plan, cpus, options.common.seconds);
    Row row{.n_tokens = n_tokens};
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("limit, {} tokens", n_tokens));
        const Measured limit = measure(bare.transport(), plan, cpus);
        progress.step(fmt::format("rollring, {} tokens", n_tokens));
        const Measured mine = measure_ring(ring, plan, cpus);
        if (interrupted()) break;
        row.limit.push_back(limit.tokens_per_s);
        row.ring.push_back(mine.tokens_per_s);
        row.ratio.push_back(mine.tokens_per_s / limit.tokens_per_s);
        row.line_ns.push_back(limit.line_ns);
        row.line_ns.push_back(mine.line_ns);
        row.figures = mine.figures;
    }
    return row;
}

Json to_json(const Row& row) {
    const auto gigabytes = [](double tokens) { return tokens * token_bytes / 1e9; };
    return {{"tokens", row.n_tokens},
            {"limit_tokens_per_s", Spread::of(row.limit).json()},
            {"rollring_tokens_per_s", Spread::of(row.ring).json()},
            {"limit_gb_per_s", gigabytes(Spread::of(row.limit).median)},
            {"rollring_gb_per_s", gigabytes(Spread::of(row.ring).median)},
            {"ratio", Spread::of(row.ratio).json()},
            {"ratio_rounds", row.ratio},
            {"line_ns", Spread::of(row.line_ns).json()},
            {"laps_soft", row.figures[1]},
            {"laps_full", row.figures[2]},
            {"waits", row.figures[3]}};
}

void print(const Row& row) {
    const Spread limit = Spread::of(row.limit);
    const Spread ring = Spread::of(row.ring);
    const Spread ratio = Spread::of(row.ratio);
    const Spread line = Spread::of(row.line_ns);
    const double gigabytes = token_bytes / 1e9;
    fmt::print(
        "{:>7} {:>8.0f} {:>6.1f} {:>8.0f} {:>6.1f}   {:.2f} [{:.2f}-{:.2f}] "
        "{:>6.0f} [{:.0f}-{:.0f}]\n",
        row.n_tokens, limit.median / 1e6, limit.median * gigabytes, ring.median / 1e6,
        ring.median * gigabytes, ratio.median, ratio.low, ratio.high, line.median, line.low,
        line.high);
}

void run(const Options& options) {
    for (const std::uint32_t n_tokens : options.tokens) {
        if (n_tokens == 0) fail("--tokens: a record needs tokens");
    }
    const Cpus cpus = options.common.choose_cpus();
    std::vector<Row> rows;
    {
        Progress progress(options.tokens.size() * 2 * options.common.repeat);
        for (const std::uint32_t n_tokens : options.tokens) {
            rows.push_back(measure_length(options, n_tokens, cpus, progress));
        }
    }
    if (options.common.json) {
        Json out = {{"question", "throughput"}, {"machine", machine(cpus)}};
        out["options"] = {{"lane_bytes", options.lane_bytes},
                          {"soft_bytes", options.soft_bytes},
                          {"batch", options.batch},
                          {"rounds", options.common.repeat}};
        for (const Row& row : rows) out["rows"].push_back(to_json(row));
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print("{}\n{} alternating rounds; medians, [lowest-highest]; ratio: median over rounds\n",
               machine_line(cpus), options.common.repeat);
    fmt::print("{:>7} {:>8} {:>6} {:>8} {:>6}   {:<16} {:>6}\n", "tokens", "limit", "", "rollring",
               "", "ratio", "line");
    fmt::print("{:>7} {:>8} {:>6} {:>8} {:>6}   {:<16} {:>6}\n", "/record", "Mtok/s", "GB/s",
               "Mtok/s", "GB/s", "", "ns");
    for (const Row& row : rows) print(row);
}

}  // namespace

void add_throughput(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand(
        "throughput", "one producer, one consumer that reads every byte, against the limit");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->tokens, "tokens per record")
        ->capture_default_str()
        ->delimiter(',');
    sub->add_option("--lane-bytes", options->lane_bytes, "capacity of the lane")
        ->capture_default_str();
    sub->add_option("--soft-bytes", options->soft_bytes, "soft wrap, and the limit's buffers")
        ->capture_default_str();
    sub->add_option("--records", options->records, "records per run, instead of --seconds");
    sub->add_option("--batch", options->batch, "records per flush")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    sub->add_flag("--wait", options->wait, "the consumer sleeps in wait() instead of polling");
    sub->callback([options] { run(*options); });
}

}  // namespace bench
