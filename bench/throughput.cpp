// Question: how close is rollring to the limit, a bare two-process hand-off of the same bytes?

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "rollring/ring.hpp"
#include "workload.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::vector<std::uint32_t> tokens = {256, 2048, 16'384, 131'072};
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::string routed_experts = "131072x61x8";
    std::uint64_t records = 0;
    std::uint32_t batch = 1;
    bool wait = false;
};

// What one line of the table moves.
struct Length {
    std::uint32_t n_tokens;
    Experts experts = {};

    [[nodiscard]] double bytes_per_token() const {
        return static_cast<double>(token_bytes + experts.token_bytes());
    }
    [[nodiscard]] std::uint64_t record_bytes() const { return Flat::of(n_tokens, experts).bytes; }
};

struct Row {
    Length length;
    std::vector<double> limit;
    std::vector<double> ring;
    std::vector<double> ratio;
    std::vector<double> line_ns;
    std::array<std::int64_t, 8> figures{};
};

// "131072x61x8": tokens, layers, experts a token and layer.
Length parse_experts(const std::string& text) {
    Length found{};
    std::uint32_t* const parts[] = {&found.n_tokens, &found.experts.layers, &found.experts.k};
    std::string_view rest = text;
    bool good = true;
    for (std::uint32_t* const part : parts) {
        const std::size_t end =
            std::min(part == &found.experts.k ? rest.size() : rest.find('x'), rest.size());
        const auto number = parse_number<std::uint32_t>(rest.substr(0, end));
        good = good && number && *number > 0;
        *part = number.value_or(0);
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (!good || found.experts.layers > 1024 || found.experts.k > 1024) {
        fail(fmt::format("--routed-experts: '{}' is not 131072x61x8 or none", text));
    }
    if (found.record_bytes() > std::uint64_t{4} << 30) fail("--routed-experts: 4 GiB at most");
    return found;
}

// A lane holds three records at least: one is read, one is written, one is in between.
std::uint64_t lane_for(const Options& options, const Length& length) {
    constexpr std::uint64_t unit = std::uint64_t{16} << 20;
    const std::uint64_t three = (3 * length.record_bytes() + unit) / unit * unit;
    return std::max(parse_bytes(options.lane_bytes), length.experts.layers != 0 ? three : 0);
}

// Said before anything is measured: a long record would fail at the end.
void check_room(const Options& options, const std::vector<Length>& lengths) {
    std::uint64_t needed = 0;
    for (const Length& length : lengths) needed = std::max(needed, lane_for(options, length));
    const std::uint64_t free_bytes = rollring::shared_memory_space().free_bytes;
    if (free_bytes > needed + (std::uint64_t{1} << 20)) return;
    fail(fmt::format(
        "/dev/shm has {} MiB free, the lane needs {} MiB: start the container with "
        "--shm-size=1g, or lower --lane-bytes{}",
        free_bytes >> 20, needed >> 20,
        lengths.back().experts.layers != 0 ? " and leave the long record out: --routed-experts none"
                                           : ""));
}

Row measure_length(const Options& options, const Length& length, const Cpus& cpus,
                   Progress& progress) {
    RingTransport ring;
    ring.lane_bytes = lane_for(options, length);
    ring.soft_bytes = parse_bytes(options.soft_bytes);
    ring.sleeping = options.wait;
    // The same working set: as many buffers as a lane of the soft length holds records.
    const std::uint64_t working = std::min(ring.soft_bytes, ring.lane_bytes);
    const BareHandoff bare(length.n_tokens, working, length.experts);
    Plan plan{.n_tokens = length.n_tokens, .experts = length.experts, .batch = options.batch};
    plan.warmup = std::max<std::uint64_t>(8, 2 * working / plan.record_bytes());
    plan.records = options.records != 0
                       ? options.records
                       : calibrate(bare.transport(), plan, cpus, options.common.seconds);
    Row row{.length = length};
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("limit, {} tokens", length.n_tokens));
        const Measured limit = measure(bare.transport(), plan, cpus);
        progress.step(fmt::format("rollring, {} tokens", length.n_tokens));
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

std::string experts_text(const Experts& experts) {
    return experts.layers == 0 ? "" : fmt::format("{}x{} u16", experts.layers, experts.k);
}

Json to_json(const Row& row) {
    const double bytes = row.length.bytes_per_token();
    const auto gigabytes = [bytes](double tokens) { return tokens * bytes / 1e9; };
    return {{"tokens", row.length.n_tokens},
            {"routed_experts", experts_text(row.length.experts)},
            {"record_bytes", row.length.record_bytes()},
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
    const double gigabytes = row.length.bytes_per_token() / 1e9;
    fmt::print(
        "{:>7} {:>8.0f} {:>6.1f} {:>8.0f} {:>6.1f}   {:.2f} [{:.2f}-{:.2f}] "
        "{:>6.0f} [{:.0f}-{:.0f}]{}\n",
        row.length.n_tokens, limit.median / 1e6, limit.median * gigabytes, ring.median / 1e6,
        ring.median * gigabytes, ratio.median, ratio.low, ratio.high, line.median, line.low,
        line.high,
        row.length.experts.layers == 0
            ? ""
            : fmt::format("  with routed experts {}, {:.0f} MB a record",
                          experts_text(row.length.experts),
                          static_cast<double>(row.length.record_bytes()) / 1e6));
}

void run(const Options& options) {
    std::vector<Length> lengths;
    for (const std::uint32_t n_tokens : options.tokens) {
        if (n_tokens == 0) fail("--tokens: a record needs tokens");
        lengths.push_back({n_tokens});
    }
    if (options.routed_experts != "none") lengths.push_back(parse_experts(options.routed_experts));
    check_room(options, lengths);
    const Cpus cpus = options.common.choose_cpus();
    std::vector<Row> rows;
    {
        Progress progress(lengths.size() * 2 * options.common.repeat);
        for (const Length& length : lengths) {
            rows.push_back(measure_length(options, length, cpus, progress));
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
    const auto* tokens = sub->add_option("--tokens", options->tokens, "tokens per record")
                             ->capture_default_str()
                             ->delimiter(',');
    const auto* experts =
        sub->add_option("--routed-experts", options->routed_experts,
                        "one more record: tokens x layers x experts, u16 (129 MB), or none; "
                        "left out where --tokens is given")
            ->capture_default_str();
    sub->add_option("--lane-bytes", options->lane_bytes, "capacity of the lane")
        ->capture_default_str();
    sub->add_option("--soft-bytes", options->soft_bytes, "soft wrap, and the limit's buffers")
        ->capture_default_str();
    sub->add_option("--records", options->records, "records per run, instead of --seconds");
    sub->add_option("--batch", options->batch, "records per flush")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    sub->add_flag("--wait", options->wait, "the consumer sleeps in wait() instead of polling");
    sub->callback([options, tokens, experts] {
        if (tokens->count() != 0 && experts->count() == 0) options->routed_experts = "none";
        run(*options);
    });
}

}  // namespace bench
