// Question: how long from commit to a consumer that has read the record, spinning and asleep, when
// nothing else goes on and under load?

#include "latency_paced.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

namespace bench {
namespace {

constexpr const char* what_it_measures =
    R"(Two processes; a record counts as read when each of its bytes has been summed.

light: nothing is under way; the producer waits 20 us (200 us for a sleeping consumer) between
  records.
paced: long records (--paced-tokens) far apart (--paced-gap-us), as rollout workers send them, over
  a ring with as many producers attached as --paced-lanes says; all but one of them are silent.
  From commit, and from before push() was called. "From the first": of a new ring, whose memory
  neither process has touched; elsewhere two laps of the ring go before.
heavy: first the capacity is measured, the same loop without pauses; then records come at random
  (exponential gaps) at a share of it (--loads), each sent when it is due, or at once if the
  producer is late. The same arrivals go over the bare hand-offs.

from commit: from just before the record became visible.
from due: from when the record was to be sent, whatever held it up: encoding, a full lane, or the
  records before it. A producer that is held up cannot hide it (no coordinated omission).

Beside rollring, in the same run: bare record (the same bytes over fixed buffers with a flag each),
bare cache line (one word), bare futex (one word, the consumer sleeps and is woken), and the
one-way time of a cache line in a tight ping-pong.)";

constexpr double light = 0;

struct Options {
    Common common;
    std::uint32_t n_tokens = 64;
    std::uint64_t records = 3000;     // of a light run
    std::int64_t spin_gap_us = 20;    // between records when the consumer spins
    std::int64_t sleep_gap_us = 200;  // and when it has fallen asleep
    std::vector<double> loads = {0.5, 0.8};
    PacedOptions paced;
    bool only_paced = false;
};

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

struct Row {
    Way way;
    double load;  // of rollring's capacity; 0: light
    Percentiles from_commit = {};
    Percentiles from_due = {};
    std::vector<double> per_s = {};  // that came

    // What a reader looks at first: without load there is no queue.
    [[nodiscard]] const Percentiles& figures() const {
        return load == light ? from_commit : from_due;
    }
    [[nodiscard]] std::string load_name() const {
        return load == light ? "light" : fmt::format("{:g} of capacity", load);
    }
    [[nodiscard]] std::string name() const {
        return fmt::format("{}, {}, {}", key(way), sleeps(way) ? "asleep" : "spinning",
                           load_name());
    }
};

struct Result {
    std::vector<Row> rows;
    std::array<std::vector<double>, 2> capacity;  // spinning, asleep; records a second
    std::vector<double> line_ns;

    [[nodiscard]] const Row& row(Way way, double load) const {
        return *std::ranges::find_if(
            rows, [&](const Row& one) { return one.way == way && one.load == load; });
    }
};

std::vector<Row> make_rows(const Options& options) {
    std::vector<Row> rows;
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

double measure_capacity(const Options& options, Way way, const Cpus& cpus) {
    std::vector<double> found;
    for (int i = 0; i < 3 && !interrupted(); i++) {
        const Pace pace{.n_tokens = options.n_tokens,
                        .records = std::max<std::uint64_t>(1000, 6'400'000 / options.n_tokens)};
        found.push_back(measure_delays(way, pace, cpus).per_s_read);
    }
    return Spread::of(found).median;
}

Pace pace_of(const Row& row, const Options& options, double capacity) {
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

void run_round(Result& result, const Options& options, const Cpus& cpus, Progress& progress) {
    result.line_ns.push_back(line_ns(cpus));
    std::array<double, 2> capacity{};
    for (const Way way : {Way::ring_spinning, Way::ring_asleep}) {
        if (options.loads.empty()) break;
        progress.step("capacity");
        capacity[sleeps(way) ? 1 : 0] = measure_capacity(options, way, cpus);
    }
    for (Row& row : result.rows) {
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

Json to_json(const Result& result, const Options& options, const Cpus& cpus) {
    Json out = {{"question", "latency"},      {"machine", machine(cpus)},
                {"tokens", options.n_tokens}, {"rounds", options.common.repeat},
                {"realtime", cpus.realtime},  {"line_ns", Spread::of(result.line_ns).json()}};
    if (!options.loads.empty() && !options.only_paced) {
        out["capacity_per_s"] = {{"spinning", Spread::of(result.capacity[0]).json()},
                                 {"asleep", Spread::of(result.capacity[1]).json()}};
    }
    for (const Row& row : result.rows) {
        Json one = {{"name", row.name()},
                    {"way", key(row.way)},
                    {"mode", sleeps(row.way) ? "asleep" : "spinning"},
                    {"load", row.load},
                    {"records_per_s", Spread::of(row.per_s).json()},
                    {"measured_from", row.load == light ? "commit" : "due"}};
        one.update(row.figures().json());
        one["from_commit"] = row.from_commit.json();
        one["from_due"] = row.from_due.json();
        for (const char* same : {"quantiles", "histogram"}) {  // they stand above
            one[row.load == light ? "from_commit" : "from_due"].erase(same);
        }
        out["rows"].push_back(std::move(one));
    }
    return out;
}

void print_rows(const Result& result) {
    fmt::print("{:<43} {:>8}   {:^23}   {:^25}\n", "", "records", "from commit, ns",
               "from due, ns");
    fmt::print("{:<43} {:>8}   {:>7} {:>7} {:>7}   {:>7} {:>8} {:>8}\n", "", "/s", "p50", "p99",
               "p99.9", "p50", "p99", "p99.9");
    for (const Row& row : result.rows) {
        fmt::print("{:<43} {:>8.3g}   {:>7.0f} {:>7.0f} {:>7.0f}   {:>7.0f} {:>8.0f} {:>8.0f}\n",
                   row.name(), Spread::of(row.per_s).median, row.from_commit.median(0),
                   row.from_commit.median(1), row.from_commit.median(2), row.from_due.median(0),
                   row.from_due.median(1), row.from_due.median(2));
    }
}

// Percent of the records by octave.
void print_histogram(const Result& result) {
    constexpr unsigned first = 6;
    constexpr unsigned last = 20;
    std::string head = fmt::format("{:<43}", "% of records, from so many ns (octaves)");
    for (unsigned i = first; i <= last; i++) {
        const std::uint64_t from = i == first ? 0 : std::uint64_t{1} << i;
        head += from < 1024 ? fmt::format("{:>6}", from) : fmt::format("{:>5}k", from >> 10);
    }
    fmt::print("{}\n", head);
    for (const Row& row : result.rows) {
        const Delays& all = row.figures().all;
        std::string line = fmt::format("{:<43}", row.name());
        for (unsigned i = first; i <= last; i++) {
            std::uint64_t records = 0;
            const unsigned from = i == first ? 0 : i;
            const unsigned to = i == last ? 63 : i;
            for (unsigned k = from; k <= to; k++) records += all.octave(k);
            const double percent = 100.0 * static_cast<double>(records) /
                                   static_cast<double>(std::max<std::uint64_t>(1, all.count()));
            line += records == 0     ? fmt::format("{:>6}", ".")
                    : percent < 0.01 ? fmt::format("{:>6}", "+")
                                     : fmt::format("{:>6.2f}", percent);
        }
        fmt::print("{}\n", line);
    }
}

void print(const Result& result, const Options& options, const Cpus& cpus) {
    const double line = Spread::of(result.line_ns).median;
    fmt::print("{}\n{} tokens a record; medians of {} rounds; cache line one way {:.0f} ns\n",
               machine_line(cpus), options.n_tokens, options.common.repeat, line);
    if (options.only_paced) return;
    if (!options.loads.empty()) {
        fmt::print("capacity {:.3g} records/s spinning, {:.3g} asleep\n",
                   Spread::of(result.capacity[0]).median, Spread::of(result.capacity[1]).median);
    }
    print_rows(result);
    fmt::print("\n");
    print_histogram(result);
    const auto p50 = [&](Way way) { return result.row(way, light).from_commit.median(0); };
    fmt::print(
        "\nlight, p50: spinning is {:.1f} cache lines one way, {:.2f} bare cache lines, "
        "{:.2f} bare records; asleep is {:.2f} bare futexes\n",
        p50(Way::ring_spinning) / line, p50(Way::ring_spinning) / p50(Way::bare_line),
        p50(Way::ring_spinning) / p50(Way::bare_record),
        p50(Way::ring_asleep) / p50(Way::bare_futex));
}

void run(const Options& options) {
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
    if (options.common.json) {
        Json out = to_json(result, options, cpus);
        out["paced"] = paced.json();
        fmt::print("{}\n", out.dump());
        return;
    }
    print(result, options, cpus);
    paced.print();
}

}  // namespace

void add_latency(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("latency", "commit to read in full, light load and heavy");
    sub->footer(what_it_measures);
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->n_tokens, "tokens per record")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    sub->add_option("--records", options->records, "records of a light run; --seconds: of a heavy")
        ->capture_default_str()
        ->check(CLI::Range(1000, 10'000'000));
    auto* loads = sub->add_option("--loads", options->loads, "heavy: shares of the capacity")
                      ->capture_default_str()
                      ->delimiter(',')
                      ->check(CLI::Range(0.01, 2.0));
    sub->add_flag_callback(
           "--light", [options] { options->loads.clear(); }, "no heavy load")
        ->excludes(loads);
    sub->add_option("--paced-tokens", options->paced.n_tokens, "paced: tokens per record")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    sub->add_option("--paced-gap-us", options->paced.gap_us, "paced: between records")
        ->capture_default_str()
        ->check(CLI::Range(0, 1'000'000));
    sub->add_option("--paced-lanes", options->paced.lanes, "paced: lanes with a producer")
        ->capture_default_str()
        ->delimiter(',')
        ->check(CLI::Range(1, 4096));
    sub->add_option("--paced-records", options->paced.records, "paced: records of a run")
        ->capture_default_str()
        ->check(CLI::Range(1000, 10'000'000));
    sub->add_flag("--only-paced", options->only_paced, "nothing else");
    sub->callback([options] { run(*options); });
}

}  // namespace bench
