// Question: how does the cost grow with producers, records, lanes, open groups, and how many small
// records a second go through one lane?

#include "scaling.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "group_machine.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::vector<std::string> parts = {"producers", "records", "lanes", "groups", "small"};
    std::vector<std::uint32_t> producers = {1, 2, 4, 8, 16, 32, 64};
    std::vector<std::uint64_t> records = {1'000, 10'000, 100'000, 1'000'000, 10'000'000};
    std::vector<std::uint32_t> lanes = {1, 4, 16, 64, 256, 1024};
    std::vector<std::uint64_t> groups = {100, 1'000, 10'000, 100'000, 1'000'000};
    std::vector<std::uint32_t> batches = {1, 8, 32, 128};
    std::uint32_t n_tokens = 2048;
    std::string soft_bytes = "0";
    std::string lane_bytes = "0";
};

constexpr std::uint32_t small_tokens = 64;
constexpr std::uint32_t small_batch = 32;

// One line of one part: several figures of several rounds, and what they belong to.
struct Row {
    std::uint64_t x;  // producers, records, lanes, ...
    std::vector<std::pair<std::string, std::vector<double>>> figures = {};
    bool crowded = false;  // more processes than CPUs: the scheduler is measured

    void add(const std::string& name, double value) {
        for (auto& [known, values] : figures) {
            if (known == name) return values.push_back(value);
        }
        figures.emplace_back(name, std::vector{value});
    }
};

struct Part {
    std::string name;
    std::string x_name;
    std::vector<Row> rows = {};
};

template <class X>
Part make_part(std::string name, std::string x_name, const std::vector<X>& values) {
    Part part{std::move(name), std::move(x_name)};
    for (const X value : values) part.rows.push_back({.x = value});
    return part;
}

void round_of_producers(Part& part, const Options& options, const Cpus& cpus, Progress& progress) {
    double one = 0;  // the bare hand-off of one producer, same round
    ManyPlan plan{.n_tokens = options.n_tokens, .seconds = options.common.seconds};
    plan.soft_bytes = parse_bytes(options.soft_bytes);
    progress.step("bare hand-off, 1 producer");
    one = measure_bare_many(plan, cpus).tokens_per_s;
    for (Row& row : part.rows) {
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
        row.add("tokens_per_s", ring.tokens_per_s);
        row.add("bare_tokens_per_s", bare.tokens_per_s);
        row.add("share_of_one_bare", ring.tokens_per_s / one);
        row.add("share_of_bare", ring.tokens_per_s / bare.tokens_per_s);
        row.add("least_share", ring.least_share);
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

// ns a record of `records` small ones through a ring with so many lanes.
double small_ns(std::uint64_t records, std::uint32_t batch, std::uint32_t lanes, const Cpus& cpus) {
    RingTransport ring;
    ring.lanes = lanes;
    return 1e9 * small_tokens / measure_ring(ring, small_plan(records, batch), cpus).tokens_per_s;
}

std::uint64_t about(const Options& options) {  // small records that take --seconds
    return static_cast<std::uint64_t>(options.common.seconds * 4e6);
}

// How many tokens the bare hand-off moves in so many bytes, its flag and header among them.
std::uint32_t tokens_in(std::uint64_t bytes) {
    return static_cast<std::uint32_t>((bytes - Flat::header_bytes) / token_bytes);
}

// A record in a lane is its tokens, a frame, a header and a name: the bare hand-off is given as
// many cache lines, too, for that is what no ring that says as much of a record can beat.
void round_of_small(Part& part, const Options& options, const Cpus& cpus, Progress& progress) {
    constexpr std::uint64_t bare_bytes = std::uint64_t{4} << 20;
    const BareHandoff bare(small_tokens, bare_bytes);
    for (Row& row : part.rows) {
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
        row.add("records_per_s", mine);
        row.add("bare_records_per_s", limit);
        row.add("share_of_bare", mine / limit);
        row.add("same_lines_records_per_s", same);
        row.add("share_of_same_lines", mine / same);
    }
}

void run_round(Part& part, const Options& options, const Cpus& cpus, Progress& progress) {
    if (part.name == "producers") return round_of_producers(part, options, cpus, progress);
    if (part.name == "small") return round_of_small(part, options, cpus, progress);
    for (Row& row : part.rows) {
        progress.step(fmt::format("{} {}", row.x, part.x_name));
        if (interrupted()) return;
        double ns = 0;
        if (part.name == "records") ns = small_ns(row.x, small_batch, 1, cpus);
        if (part.name == "groups") ns = machine_ns(row.x, options.common.seconds);
        if (part.name == "lanes") {
            const auto lanes = static_cast<std::uint32_t>(row.x);
            ns = small_ns(about(options), small_batch, lanes, cpus);
        }
        if (!interrupted()) row.add("ns_per_record", ns);
    }
}

std::vector<Part> make_parts(const Options& options) {
    std::vector<Part> parts;
    for (const std::string& name : options.parts) {
        if (name == "producers") parts.push_back(make_part(name, "producers", options.producers));
        if (name == "records") parts.push_back(make_part(name, "records", options.records));
        if (name == "lanes") parts.push_back(make_part(name, "lanes", options.lanes));
        if (name == "groups") parts.push_back(make_part(name, "open groups", options.groups));
        if (name == "small") parts.push_back(make_part(name, "records a flush", options.batches));
    }
    return parts;
}

Json to_json(const Part& part) {
    Json rows = Json::array();
    for (const Row& row : part.rows) {
        Json one = {{part.name == "small" ? "batch" : part.name, row.x}};
        for (const auto& [name, values] : row.figures) one[name] = Spread::of(values).json();
        if (part.name == "producers") one["crowded"] = row.crowded;
        rows.push_back(std::move(one));
    }
    return rows;
}

// 1234567 -> "1.235 M"; shares and ns as they are.
std::string figure(const std::string& name, const std::vector<double>& values) {
    const Spread spread = Spread::of(values);
    const bool rate = name.ends_with("_per_s");
    const double scale = rate ? 1e6 : 1;
    return fmt::format("{:>8.4g} [{:.4g}-{:.4g}]{}", spread.median / scale, spread.low / scale,
                       spread.high / scale, rate ? " M" : "");
}

void print(const Part& part) {
    const bool crowded = std::ranges::any_of(part.rows, &Row::crowded);
    fmt::print("\n{}\n", part.name == "small" ? "records of 64 tokens, by records a flush"
                                              : "by " + part.x_name);
    std::string head = fmt::format("{:>10}", part.x_name.substr(0, 10));
    if (part.rows.empty()) return;
    for (const auto& [name, _] : part.rows[0].figures) head += fmt::format("  {:<26}", name);
    fmt::print("{}\n", head);
    for (const Row& row : part.rows) {
        std::string line = fmt::format("{:>10}", row.x);
        for (const auto& [name, values] : row.figures) {
            line += fmt::format("  {:<26}", figure(name, values));
        }
        fmt::print("{}{}\n", line, row.crowded ? " *" : "");
    }
    if (crowded) {
        fmt::print("* more processes than the {} CPUs: the scheduler is measured, no claim\n",
                   Cpus::allowed().size());
    }
}

std::size_t steps_of(const std::vector<Part>& parts) {
    std::size_t steps = 0;
    for (const Part& part : parts) {
        steps += part.name == "producers" ? 2 * part.rows.size() + 1 : part.rows.size();
    }
    return steps;
}

void run(const Options& options) {
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
    if (options.common.json) {
        Json out = {{"question", "scaling"},
                    {"machine", machine(cpus)},
                    {"rounds", options.common.repeat},
                    {"tokens", options.n_tokens},
                    {"small_tokens", small_tokens},
                    {"small_batch", small_batch},
                    {"line_ns", Spread::of(line).json()}};
        for (const Part& part : parts) out[part.name] = to_json(part);
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print(
        "{}\n{} rounds; medians [lowest-highest]; cache line {:.0f} ns; producers send {} tokens a "
        "record,\nrecords and lanes {} in flushes of {}; groups: the group machine alone\n",
        machine_line(cpus), options.common.repeat, Spread::of(line).median, options.n_tokens,
        small_tokens, small_batch);
    for (const Part& part : parts) print(part);
}

}  // namespace

void add_scaling(CLI::App& app) {
    auto options = std::make_shared<Options>();
    options->common.repeat = 3;
    CLI::App* sub = app.add_subcommand("scaling", "how cost grows, and small records");
    options->common.add_to(*sub);
    const auto list = [sub](const char* name, auto& values, const char* what) {
        return sub->add_option(name, values, what)->capture_default_str()->delimiter(',');
    };
    list("--parts", options->parts, "what to measure")
        ->check(CLI::IsMember({"producers", "records", "lanes", "groups", "small"}));
    list("--producers", options->producers, "producers into one consumer")
        ->check(CLI::Range(1, 1024));
    list("--records", options->records, "small records in one run")->check(CLI::Range(1, 1 << 30));
    list("--lanes", options->lanes, "lanes of the ring, one of them used")
        ->check(CLI::Range(1, 4096));
    list("--open-groups", options->groups, "for the group machine alone (1.4 GB at a million)")
        ->check(CLI::Range(1, 10'000'000));
    list("--batch", options->batches, "small records a flush")->check(CLI::Range(1, 4096));
    sub->add_option("--tokens", options->n_tokens, "tokens a record of the producers")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    sub->add_option(
           "--lane-bytes", options->lane_bytes,
           "of each producer; 0: 512 MiB among them, 8 to 64 MiB each. All of it is filled "
           "where producers outrun the consumer; the bare hand-off has 4 MiB among them")
        ->capture_default_str();
    sub->add_option("--soft-bytes", options->soft_bytes, "soft wrap of each lane; 0: the default")
        ->capture_default_str();
    sub->callback([options] { run(*options); });
}

}  // namespace bench
