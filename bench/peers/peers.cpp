// Question: what do others move in the same run, doing the identical work?

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "peers/peer.hpp"
#include "questions.hpp"

namespace bench {
namespace {

// One peer in all its rounds.
struct Row {
    Peer peer;
    Plan plan;
    Figures figures;
    std::vector<double> quiet_times;  // of those rounds in which the cache line was fast
};

// Tokens a second of each peer at the length before this one.
using Rates = std::map<std::string, double>;

std::vector<Peer> all_peers(const PeerOptions& options) {
    std::vector<Peer> all;
    const auto add = [&all](std::vector<Peer> more) {
        std::ranges::move(more, back_inserter(all));
    };
    add(own_peers(options));
    add(stream_peers(options));
    add({boost_peer(options)});
#ifdef ROLLRING_BENCH_ZMQ
    add({zmq_peer(options)});
#else
    add({{.key = "zmq", .name = "ZeroMQ", .missing = "built without libzmq (libzmq3-dev)"}});
#endif
#ifdef ROLLRING_BENCH_HTTP
    add({http_peer()});
#else
    add({{.key = "http", .name = "HTTP + JSON", .missing = "built without cpp-httplib"}});
#endif
    add(python_peers(options));
    return all;
}

// rollring is always there: everything is compared with it.
std::vector<Peer> choose(std::vector<Peer> all, const std::vector<std::string>& wanted) {
    if (wanted.empty()) return all;
    std::vector<Peer> chosen;
    std::string known;
    for (Peer& peer : all) {
        known += " " + peer.key;
        const bool named = std::ranges::find(wanted, peer.key) != wanted.end();
        if (named || peer.key == "rollring") chosen.push_back(std::move(peer));
    }
    for (const std::string& key : wanted) {
        const bool found = std::ranges::any_of(chosen, [&](auto& p) { return p.key == key; });
        if (!found) fail(fmt::format("--peers: no '{}'; there are{}", key, known));
    }
    return chosen;
}

std::uint64_t whole(std::uint64_t records, std::uint64_t unit) {
    return std::max<std::uint64_t>(1, (records + unit - 1) / unit) * unit;
}

// False if it cannot go on; the row then says why.
bool run_once(Row& row, const Cpus& cpus, Measured& measured) {
    try {
        measured = row.peer.run(row.plan, cpus);
    } catch (const PeerProblem& problem) {
        row.peer.missing = "failed: " + problem.what;
        return false;
    }
    return measured.tokens_per_s > 0;
}

void calibrate_row(Row& row, const PeersQuestion& options, std::uint32_t n_tokens, const Cpus& cpus,
                   Rates& rates) {
    const std::uint64_t unit = row.peer.unit;
    const std::uint64_t first =
        std::clamp<std::uint64_t>(row.peer.first_records * 2048 / n_tokens, 32, 200'000);
    row.plan = {
        .n_tokens = n_tokens, .records = whole(first, unit), .warmup = whole(first / 4, unit)};
    Measured measured;
    double& rate = rates[row.peer.key];
    const double seconds = static_cast<double>(row.plan.total()) * n_tokens / rate;
    if (rate != 0 && seconds > options.most_seconds) {
        row.peer.missing = fmt::format("its shortest run would take about {:.0f} s", seconds);
        return;
    }
    if (!run_once(row, cpus, measured)) return;
    rate = measured.tokens_per_s;
    const double records = measured.tokens_per_s / n_tokens * options.common.seconds;
    row.plan.records = whole(static_cast<std::uint64_t>(records) + 20, unit);
}

// Returns the times of a cache line.
Figures run_rounds(std::vector<Row>& rows, const PeersQuestion& options, const Cpus& cpus,
                   Progress& progress) {
    Figures lines;
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        Measured mine;
        for (Row& row : rows) {
            progress.step(fmt::format("{}, {} tokens", row.peer.name, row.plan.n_tokens));
            Measured measured;
            if (interrupted() || !row.peer.missing.empty()) continue;
            if (!run_once(row, cpus, measured)) continue;
            if (row.peer.key == "rollring") mine = measured;
            const double times = mine.tokens_per_s / measured.tokens_per_s;
            row.figures.add("tokens_per_s", measured.tokens_per_s);
            row.figures.add("rollring_times", times);
            lines.add("line_ns", measured.line_ns);
            if (std::max(mine.line_ns, measured.line_ns) < options.quiet_line_ns) {
                row.quiet_times.push_back(times);
            }
        }
    }
    return lines;
}

// Appends to the report's rows, and to those that it skipped.
void measure_length(const PeersQuestion& options, std::uint32_t n_tokens, const Cpus& cpus,
                    Rates& rates, Json& report) {
    const PeerOptions peer_options{.n_tokens = n_tokens,
                                   .queue_bytes = parse_bytes(options.queue_bytes),
                                   .python = options.python,
                                   .script = options.script,
                                   .most_seconds = options.most_seconds};
    std::vector<Row> rows;
    std::vector<Peer> chosen = choose(all_peers(peer_options), options.wanted);
    rows.reserve(chosen.size());
    for (Peer& peer : chosen) {
        rows.push_back({.peer = std::move(peer), .plan = {.n_tokens = n_tokens}});
    }
    Progress progress(rows.size() * (options.common.repeat + 1));
    for (Row& row : rows) {
        progress.step("calibrating " + row.peer.name);
        if (!row.peer.missing.empty() || interrupted()) continue;
        calibrate_row(row, options, n_tokens, cpus, rates);
    }
    const Figures lines = run_rounds(rows, options, cpus, progress);
    for (const Row& row : rows) {
        Json one = {{"key", row.peer.key}, {"name", row.peer.name}, {"tokens", n_tokens}};
        if (row.figures.empty()) {
            one["why"] = row.peer.missing.empty() ? "interrupted" : row.peer.missing;
            report["skipped"].push_back(std::move(one));
            continue;
        }
        one["records"] = row.plan.records;
        row.figures.append_to(one);
        one["quiet_rounds"] = row.quiet_times.size();
        one["rollring_times_quiet"] = Spread::of(row.quiet_times).json();
        one["line_ns"] = lines.spread("line_ns").median;
        report["rows"].push_back(std::move(one));
    }
}

}  // namespace

void run(const PeersQuestion& options) {
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "peers"},
                {"machine", machine(cpus)},
                {"rounds", options.common.repeat},
                {"seconds", options.common.seconds},
                {"queue_bytes", options.queue_bytes},
                {"quiet_line_ns", options.quiet_line_ns},
                {"rows", Json::array()},
                {"skipped", Json::array()}};
    Rates rates;
    for (const std::uint32_t n_tokens : options.tokens) {
        measure_length(options, n_tokens, cpus, rates, out);
    }
    print_report(out, options.common.json);
}

}  // namespace bench
