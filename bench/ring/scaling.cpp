// Question: how does the cost grow with producers, records and lanes, and how many small records a
// second go through one lane? (The machine that forms groups: tests/stash/machine_rate.cpp.)

#include "ring/scaling.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "questions.hpp"
#include "ring/ring_transport.hpp"

namespace bench {
namespace {

constexpr std::uint32_t small_tokens = 64;
constexpr std::uint32_t small_batch = 32;

// One line of one part.
struct ScalingRow {
    std::uint64_t x;  // producers, records, lanes, ...
    Figures figures = {};
    bool crowded = false;  // more processes than CPUs: the scheduler is measured
};

struct Part {
    std::string name;
    std::vector<ScalingRow> rows = {};
};

template <class X>
Part make_part(std::string name, const std::vector<X>& values) {
    Part part{std::move(name)};
    for (const X value : values) part.rows.push_back({.x = value});
    return part;
}

void round_of_producers(Part& part, const ScalingQuestion& options, const Cpus& cpus,
                        Progress& progress) {
    ManyPlan plan{.n_tokens = options.n_tokens, .seconds = options.common.seconds};
    plan.soft_bytes = parse_bytes(options.soft_bytes);
    progress.step("bare hand-off, 1 producer");
    const double one = measure_bare_many(plan, cpus).tokens_per_s;  // in the same round
    for (ScalingRow& row : part.rows) {
        plan.producers = static_cast<std::uint32_t>(row.x);
        plan.lane_bytes = parse_bytes(options.lane_bytes);
        if (plan.lane_bytes == 0) {
            plan.lane_bytes = std::clamp((std::uint64_t{512} << 20) / row.x, std::uint64_t{8} << 20,
                                         std::uint64_t{64} << 20);
        }
        progress.step(fmt::format("bare hand-off, {} producers", row.x));
        const ManyMeasured bare = measure_bare_many(plan, cpus);
        progress.step(fmt::format("rollring, {} producers", row.x));
        const ManyMeasured ring = measure_ring_many(plan, cpus);
        if (interrupted()) return;
        row.crowded = row.x + 1 > Cpus::allowed().size();
        row.figures.add("tokens_per_s", ring.tokens_per_s);
        row.figures.add("bare_tokens_per_s", bare.tokens_per_s);
        row.figures.add("share_of_one_bare", ring.tokens_per_s / one);
        row.figures.add("share_of_bare", ring.tokens_per_s / bare.tokens_per_s);
        row.figures.add("least_share", ring.least_share);
    }
}

Plan small_plan(std::uint64_t records, std::uint32_t batch) {
    // Two soft laps first: the pages are then in both processes' tables.
    const std::uint64_t warmup =
        (std::uint64_t{8} << 20) / (std::uint64_t{small_tokens} * token_bytes);
    return {.n_tokens = small_tokens,
            .records = records,
            .warmup = warmup / batch * batch,
            .batch = batch};
}

// ns a record of `records` small ones through a ring of `lanes` lanes.
double small_ns(std::uint64_t records, std::uint32_t lanes, const Cpus& cpus) {
    const Plan plan = small_plan(records, small_batch);
    return 1e9 * small_tokens / measure_ring({.lanes = lanes}, plan, cpus).tokens_per_s;
}

std::uint64_t about(const ScalingQuestion& options) {  // small records that take --seconds
    return static_cast<std::uint64_t>(options.common.seconds * 4e6);
}

// The number of tokens that the bare hand-off moves in `bytes`, with its flag and header.
std::uint32_t tokens_in(std::uint64_t bytes) {
    return static_cast<std::uint32_t>((bytes - Flat::header_bytes) / token_bytes);
}

// A record in a lane is its tokens, a frame, a header and a name: the bare hand-off gets as many
// cache lines, the bound for a ring that says as much of a record.
void round_of_small(Part& part, const ScalingQuestion& options, const Cpus& cpus,
                    Progress& progress) {
    constexpr std::uint64_t bare_bytes = std::uint64_t{4} << 20;
    const BareHandoff bare(small_tokens, bare_bytes);
    for (ScalingRow& row : part.rows) {
        const auto batch = static_cast<std::uint32_t>(row.x);
        progress.step(fmt::format("{} small records a flush", batch));
        const Plan plan = small_plan(about(options), batch);
        const double limit = measure(bare.transport(), plan, cpus).tokens_per_s / small_tokens;
        const Measured ring = measure_ring({}, plan, cpus);
        const double mine = ring.tokens_per_s / small_tokens;
        Plan wide = plan;
        wide.n_tokens = tokens_in(static_cast<std::uint64_t>(ring.figures[4]));
        const BareHandoff same_lines(wide.n_tokens, bare_bytes);
        const double same =
            measure(same_lines.transport(), wide, cpus).tokens_per_s / wide.n_tokens;
        if (interrupted()) return;
        row.figures.add("records_per_s", mine);
        row.figures.add("bare_records_per_s", limit);
        row.figures.add("share_of_bare", mine / limit);
        row.figures.add("same_lines_records_per_s", same);
        row.figures.add("share_of_same_lines", mine / same);
    }
}

void run_round(Part& part, const ScalingQuestion& options, const Cpus& cpus, Progress& progress) {
    if (part.name == "producers") return round_of_producers(part, options, cpus, progress);
    if (part.name == "small") return round_of_small(part, options, cpus, progress);
    for (ScalingRow& row : part.rows) {
        progress.step(fmt::format("{} {}", row.x, part.name));
        if (interrupted()) return;
        const double ns = part.name == "records"
                              ? small_ns(row.x, 1, cpus)
                              : small_ns(about(options), static_cast<std::uint32_t>(row.x), cpus);
        if (!interrupted()) row.figures.add("ns_per_record", ns);
    }
}

std::vector<Part> make_parts(const ScalingQuestion& options) {
    std::vector<Part> parts;
    for (const std::string& name : options.parts) {
        if (name == "producers") parts.push_back(make_part(name, options.producers));
        if (name == "records") parts.push_back(make_part(name, options.records));
        if (name == "lanes") parts.push_back(make_part(name, options.lanes));
        if (name == "small") parts.push_back(make_part(name, options.batches));
    }
    return parts;
}

Json to_json(const Part& part) {
    Json rows = Json::array();
    for (const ScalingRow& row : part.rows) {
        rows.push_back({{part.name == "small" ? "batch" : part.name, row.x}});
        row.figures.append_to(rows.back());
        if (part.name == "producers") rows.back()["crowded"] = row.crowded;
    }
    return rows;
}

std::size_t steps_of(const std::vector<Part>& parts) {
    std::size_t steps = 0;
    for (const Part& part : parts) {
        steps += part.name == "producers" ? 2 * part.rows.size() + 1 : part.rows.size();
    }
    return steps;
}

}  // namespace

void run(const ScalingQuestion& options) {
    const Cpus cpus = options.common.choose_cpus();
    std::vector<Part> parts = make_parts(options);
    std::vector<double> line;
    {
        Progress progress(steps_of(parts) * options.common.repeat);
        for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
            line.push_back(line_ns(cpus));
            for (Part& part : parts) run_round(part, options, cpus, progress);
        }
    }
    Json out = {{"question", "scaling"},
                {"machine", machine(cpus)},
                {"rounds", options.common.repeat},
                {"tokens", options.n_tokens},
                {"small_tokens", small_tokens},
                {"small_batch", small_batch},
                {"line_ns", Spread::of(line).json()}};
    for (const Part& part : parts) out[part.name] = to_json(part);
    print_report(out, options.common.json);
}

}  // namespace bench
