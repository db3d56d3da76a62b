// Question: how close is rollring to the limit, a bare two-process hand-off of the same bytes?

#include <fmt/core.h>

#include <algorithm>
#include <ranges>

#include "questions.hpp"
#include "ring/ring_transport.hpp"
#include "rollring/ring.hpp"

namespace bench {
namespace {

// The bytes that one line of the table moves.
struct Length {
    std::uint32_t n_tokens;
    Experts experts = {};

    [[nodiscard]] double bytes_per_token() const {
        return static_cast<double>(token_bytes + experts.token_bytes());
    }
    [[nodiscard]] std::uint64_t record_bytes() const { return Flat::of(n_tokens, experts).bytes; }
};

// "131072x61x8": tokens, layers, experts for each token and layer.
Length parse_experts(const std::string& text) {
    std::vector<std::uint32_t> parts;
    for (const auto part : std::views::split(text, 'x')) {
        const std::string_view number(part.begin(), part.end());
        parts.push_back(parse_number<std::uint32_t>(number).value_or(0));
    }
    if (parts.size() != 3 || parts[0] == 0 || parts[1] - 1 >= 1024 || parts[2] - 1 >= 1024) {
        fail(fmt::format("--routed-experts: '{}' is not 131072x61x8 or none", text));
    }
    const Length found{parts[0], {parts[1], parts[2]}};
    if (found.record_bytes() > std::uint64_t{4} << 30) fail("--routed-experts: 4 GiB at most");
    return found;
}

// A lane holds three records at least: one is read, one is written, one is in between.
std::uint64_t lane_for(const ThroughputQuestion& options, const Length& length) {
    constexpr std::uint64_t unit = std::uint64_t{16} << 20;
    const std::uint64_t three = (3 * length.record_bytes() + unit) / unit * unit;
    return std::max(parse_bytes(options.lane_bytes), length.experts.layers != 0 ? three : 0);
}

// Checked before anything is measured, because a long record would fail only at the end.
void check_room(const ThroughputQuestion& options, const std::vector<Length>& lengths) {
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

std::string experts_text(const Experts& experts) {
    return experts.layers == 0 ? "" : fmt::format("{}x{} u16", experts.layers, experts.k);
}

Json measure_length(const ThroughputQuestion& options, const Length& length, const Cpus& cpus,
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
    Figures figures;
    Measured mine;
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("limit, {} tokens", length.n_tokens));
        const Measured limit = measure(bare.transport(), plan, cpus);
        progress.step(fmt::format("rollring, {} tokens", length.n_tokens));
        mine = measure_ring(ring, plan, cpus);
        if (interrupted()) break;
        figures.add("limit_tokens_per_s", limit.tokens_per_s);
        figures.add("rollring_tokens_per_s", mine.tokens_per_s);
        figures.add("ratio", mine.tokens_per_s / limit.tokens_per_s);
        figures.add("line_ns", limit.line_ns);
        figures.add("line_ns", mine.line_ns);
    }
    Json row = {{"tokens", length.n_tokens},
                {"routed_experts", experts_text(length.experts)},
                {"record_bytes", length.record_bytes()}};
    figures.append_to(row);
    for (const char* who : {"limit", "rollring"}) {
        const double tokens = figures.spread(fmt::format("{}_tokens_per_s", who)).median;
        row[fmt::format("{}_gb_per_s", who)] = tokens * length.bytes_per_token() / 1e9;
    }
    row["ratio_rounds"] = figures.of("ratio");
    row["laps_soft"] = mine.figures[1];
    row["laps_full"] = mine.figures[2];
    row["waits"] = mine.figures[3];
    return row;
}

}  // namespace

void run(const ThroughputQuestion& options) {
    std::vector<Length> lengths;
    lengths.reserve(options.tokens.size() + 1);
    for (const std::uint32_t n_tokens : options.tokens) lengths.push_back({n_tokens});
    if (options.routed_experts != "none") lengths.push_back(parse_experts(options.routed_experts));
    check_room(options, lengths);
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "throughput"},
                {"machine", machine(cpus)},
                {"options",
                 {{"lane_bytes", options.lane_bytes},
                  {"soft_bytes", options.soft_bytes},
                  {"batch", options.batch},
                  {"rounds", options.common.repeat}}}};
    {
        Progress progress(2 * lengths.size() * options.common.repeat);
        for (const Length& length : lengths) {
            out["rows"].push_back(measure_length(options, length, cpus, progress));
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
