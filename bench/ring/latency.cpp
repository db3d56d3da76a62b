// Question: how long from commit to a consumer that has read the record, spinning and asleep, when
// nothing else goes on and under load?

#include "ring/latency_paced.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "questions.hpp"

namespace bench {
namespace {

constexpr double light = 0;

bool sleeps(Way way) {
    return way == Way::ring_asleep || way == Way::bare_futex;
}

std::string_view key(Way way) {
    switch (way) {
        case Way::ring_spinning:
        case Way::ring_asleep:
            return "rollring";
        case Way::bare_record:
            return "bare record";
        case Way::bare_line:
            return "bare cache line";
        case Way::bare_futex:
            return "bare futex";
    }
    return "";
}

struct LatencyRow {
    Way way;
    double load;  // of rollring's capacity; 0: light
    Percentiles from_commit = {};
    Percentiles from_due = {};
    std::vector<double> per_s = {};  // that came

    [[nodiscard]] std::string name() const {
        return fmt::format("{}, {}, {}", key(way), sleeps(way) ? "asleep" : "spinning",
                           load == light ? "light" : fmt::format("{:g} of capacity", load));
    }
};

struct Result {
    std::vector<LatencyRow> rows;
    std::array<std::vector<double>, 2> capacity;  // spinning, asleep; records a second
    std::vector<double> line_ns;
};

std::vector<LatencyRow> make_rows(const LatencyQuestion& options) {
    std::vector<LatencyRow> rows;
    if (options.only_paced) return rows;
    std::vector<double> loads = {light};
    loads.insert(loads.end(), options.loads.begin(), options.loads.end());
    for (const double load : loads) {
        for (const Way way : {Way::ring_spinning, Way::bare_record, Way::bare_line,
                              Way::ring_asleep, Way::bare_futex}) {
            rows.push_back({way, load});
        }
    }
    return rows;
}

double measure_capacity(const LatencyQuestion& options, Way way, const Cpus& cpus) {
    std::vector<double> found;
    for (int i = 0; i < 3 && !interrupted(); i++) {
        const Pace pace{.n_tokens = options.n_tokens,
                        .records = std::max<std::uint64_t>(1000, 6'400'000 / options.n_tokens)};
        found.push_back(measure_delays(way, pace, cpus).per_s_read);
    }
    return Spread::of(found).median;
}

Pace pace_of(const LatencyRow& row, const LatencyQuestion& options, double capacity) {
    Pace pace{.n_tokens = options.n_tokens, .records = options.records};
    if (row.load == light) {
        pace.gap_ns = (sleeps(row.way) ? options.sleep_gap_us : options.spin_gap_us) * 1000;
        return pace;
    }
    pace.per_s = capacity * row.load;
    const double wanted = pace.per_s * options.common.seconds;
    pace.records = static_cast<std::uint64_t>(std::clamp(wanted, 1000.0, 4e6));
    return pace;
}

void run_round(Result& result, const LatencyQuestion& options, const Cpus& cpus,
               Progress& progress) {
    result.line_ns.push_back(line_ns(cpus));
    std::array<double, 2> capacity{};
    for (const Way way : {Way::ring_spinning, Way::ring_asleep}) {
        if (options.loads.empty()) break;
        progress.step("capacity");
        capacity[sleeps(way) ? 1 : 0] = measure_capacity(options, way, cpus);
    }
    for (LatencyRow& row : result.rows) {
        progress.step(row.name());
        const Pace pace = pace_of(row, options, capacity[sleeps(row.way) ? 1 : 0]);
        const Measurement found = measure_delays(row.way, pace, cpus);
        if (interrupted()) return;
        row.from_commit.add(found.from_commit);
        row.from_due.add(found.from_due);
        row.per_s.push_back(found.per_s_taken);
    }
    for (std::size_t i = 0; i < 2 && !options.loads.empty(); i++) {
        result.capacity[i].push_back(capacity[i]);
    }
}

Json to_json(const Result& result, const LatencyQuestion& options, const Cpus& cpus) {
    Json out = {{"question", "latency"},      {"machine", machine(cpus)},
                {"tokens", options.n_tokens}, {"rounds", options.common.repeat},
                {"realtime", cpus.realtime},  {"line_ns", Spread::of(result.line_ns).json()}};
    if (!options.loads.empty() && !options.only_paced) {
        out["capacity_per_s"] = {{"spinning", Spread::of(result.capacity[0]).json()},
                                 {"asleep", Spread::of(result.capacity[1]).json()}};
    }
    for (const LatencyRow& row : result.rows) {
        Json one = {{"name", row.name()},
                    {"way", key(row.way)},
                    {"mode", sleeps(row.way) ? "asleep" : "spinning"},
                    {"load", row.load},
                    {"records_per_s", Spread::of(row.per_s).json()},
                    {"measured_from", row.load == light ? "commit" : "due"}};
        // The figure that a reader looks for is first: without load there is no queue.
        one.update((row.load == light ? row.from_commit : row.from_due).json());
        one["from_commit"] = row.from_commit.json();
        one["from_due"] = row.from_due.json();
        for (const char* same : {"quantiles", "histogram"}) {  // they stand above
            one[row.load == light ? "from_commit" : "from_due"].erase(same);
        }
        out["rows"].push_back(std::move(one));
    }
    return out;
}

}  // namespace

void run(const LatencyQuestion& options) {
    const Cpus cpus = options.common.choose_cpus();
    if (!cpus.distinct()) fail("latency: two processes spin, they need a CPU each");
    Result result{.rows = make_rows(options), .capacity = {}, .line_ns = {}};
    Paced paced(options.paced);
    {
        const std::size_t steps =
            options.paced.steps() + result.rows.size() + (options.loads.empty() ? 0 : 2);
        Progress progress(steps * static_cast<std::size_t>(options.common.repeat));
        for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
            if (!options.only_paced) run_round(result, options, cpus, progress);
            if (options.only_paced) result.line_ns.push_back(line_ns(cpus));
            paced.run_round(cpus, progress);
        }
    }
    Json out = to_json(result, options, cpus);
    out["paced"] = paced.json();
    print_report(out, options.common.json);
}

}  // namespace bench
