// Question: what do others move in the same run, doing the identical work?

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "peer.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::vector<std::uint32_t> tokens = {2048};
    std::string queue_bytes = "4MiB";
    std::vector<std::string> wanted;
    std::string python = "python3";
    std::string script = ROLLRING_PEERS_SCRIPT;
    double quiet_line_ns = 150;
    double most_seconds = 20;
};

// One peer in all its rounds. Those in which the cache line was fast count once more by themselves.
struct Row {
    Peer peer;
    Plan plan;
    std::vector<double> rates;
    std::vector<double> times;  // rollring is so many times faster
    std::vector<double> quiet_times;
};

// Tokens a second of each peer at the length before this one.
using Rates = std::map<std::string, double>;

struct Table {
    std::uint32_t n_tokens;
    std::vector<Row> rows;
    std::vector<double> line_ns;
};

std::vector<Peer> all_peers(const PeerOptions& options) {
    std::vector<Peer> all;
    const auto add = [&all](std::vector<Peer> more) {
        std::ranges::move(more, back_inserter(all));
    };
    add(own_peers(options));
    add(stream_peers(options));
    add({boost_peer(options), zmq_peer(options), http_peer()});
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

void calibrate_row(Row& row, const Options& options, std::uint32_t n_tokens, const Cpus& cpus,
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

void run_rounds(Table& table, const Options& options, const Cpus& cpus, Progress& progress) {
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        double mine = 0;
        double mine_line_ns = 0;
        for (Row& row : table.rows) {
            progress.step(fmt::format("{}, {} tokens", row.peer.name, table.n_tokens));
            Measured measured;
            if (interrupted() || !row.peer.missing.empty()) continue;
            if (!run_once(row, cpus, measured)) continue;
            if (row.peer.key == "rollring") {
                mine = measured.tokens_per_s;
                mine_line_ns = measured.line_ns;
            }
            row.rates.push_back(measured.tokens_per_s);
            row.times.push_back(mine / measured.tokens_per_s);
            table.line_ns.push_back(measured.line_ns);
            if (std::max(mine_line_ns, measured.line_ns) < options.quiet_line_ns) {
                row.quiet_times.push_back(row.times.back());
            }
        }
    }
}

Table measure_length(const Options& options, std::uint32_t n_tokens, const Cpus& cpus,
                     Rates& rates) {
    const PeerOptions peer_options{.n_tokens = n_tokens,
                                   .queue_bytes = parse_bytes(options.queue_bytes),
                                   .python = options.python,
                                   .script = options.script,
                                   .most_seconds = options.most_seconds};
    Table table{.n_tokens = n_tokens};
    for (Peer& peer : choose(all_peers(peer_options), options.wanted)) {
        table.rows.push_back({.peer = std::move(peer), .plan = {}});
    }
    Progress progress(table.rows.size() * (options.common.repeat + 1));
    for (Row& row : table.rows) {
        progress.step("calibrating " + row.peer.name);
        if (!row.peer.missing.empty() || interrupted()) continue;
        calibrate_row(row, options, n_tokens, cpus, rates);
    }
    run_rounds(table, options, cpus, progress);
    return table;
}

Json to_json(const Table& table) {
    Json rows = Json::array();
    Json skipped = Json::array();
    for (const Row& row : table.rows) {
        if (row.rates.empty()) {
            skipped.push_back(
                {{"key", row.peer.key},
                 {"name", row.peer.name},
                 {"tokens", table.n_tokens},
                 {"why", row.peer.missing.empty() ? "interrupted" : row.peer.missing}});
            continue;
        }
        rows.push_back({{"key", row.peer.key},
                        {"name", row.peer.name},
                        {"tokens", table.n_tokens},
                        {"records", row.plan.records},
                        {"tokens_per_s", Spread::of(row.rates).json()},
                        {"rollring_times", Spread::of(row.times).json()},
                        {"quiet_rounds", row.quiet_times.size()},
                        {"rollring_times_quiet", Spread::of(row.quiet_times).json()},
                        {"line_ns", Spread::of(table.line_ns).median}});
    }
    return {{"rows", rows}, {"skipped", skipped}};
}

void print(const Table& table, const Options& options) {
    fmt::print(
        "{} tokens a record, queues of {}; {} alternating rounds; cache line {:.0f} ns\n"
        "{:<26} {:>10} {:>8}   rollring is so many times faster (quiet: line below {:.0f} ns)\n",
        table.n_tokens, options.queue_bytes, options.common.repeat,
        Spread::of(table.line_ns).median, "", "Mtok/s", "GB/s", options.quiet_line_ns);
    for (const Row& row : table.rows) {
        if (row.rates.empty()) {
            fmt::print("{:<26} skipped: {}\n", row.peer.name, row.peer.missing);
            continue;
        }
        const Spread rate = Spread::of(row.rates);
        const Spread times = Spread::of(row.times);
        const std::string quiet =
            row.quiet_times.empty()
                ? "no quiet round"
                : fmt::format("quiet {:.4g} of {}", Spread::of(row.quiet_times).median,
                              row.quiet_times.size());
        fmt::print("{:<26} {:>10.4g} {:>8.3g}   {:.4g} [{:.4g}-{:.4g}], {}\n", row.peer.name,
                   rate.median / 1e6, rate.median * token_bytes / 1e9, times.median, times.low,
                   times.high, quiet);
    }
}

void run(const Options& options) {
    const Cpus cpus = options.common.choose_cpus();
    std::vector<Table> tables;
    Rates rates;
    for (const std::uint32_t n_tokens : options.tokens) {
        if (n_tokens == 0) fail("--tokens: a record needs tokens");
        tables.push_back(measure_length(options, n_tokens, cpus, rates));
    }
    if (!options.common.json) {
        fmt::print("{}\n", machine_line(cpus));
        for (const Table& table : tables) print(table, options);
        return;
    }
    Json out = {{"question", "peers"},
                {"machine", machine(cpus)},
                {"rounds", options.common.repeat},
                {"seconds", options.common.seconds},
                {"queue_bytes", options.queue_bytes},
                {"quiet_line_ns", options.quiet_line_ns},
                {"rows", Json::array()},
                {"skipped", Json::array()}};
    for (const Table& table : tables) {
        const Json one = to_json(table);
        for (const char* part : {"rows", "skipped"}) {
            out[part].insert(out[part].end(), one[part].begin(), one[part].end());
        }
    }
    fmt::print("{}\n", out.dump(2));
}

}  // namespace

void add_peers(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("peers", "the identical work over other transports");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->tokens, "tokens per record")
        ->capture_default_str()
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 22));
    sub->add_option("--queue-bytes", options->queue_bytes, "room in the queues that have a choice")
        ->capture_default_str();
    sub->add_option("--peers", options->wanted,
                    "only these: limit, memcpy, unix, pipe, boost, zmq, http, mpq-lists, "
                    "mpq-numpy, faster-fifo, ray, atropos, atropos-plain")
        ->delimiter(',');
    sub->add_option("--python", options->python, "interpreter of the peers in Python")
        ->envname("ROLLRING_PYTHON")
        ->capture_default_str();
    sub->add_option("--peers-script", options->script, "bench/peers.py");
    sub->add_option("--most-seconds", options->most_seconds,
                    "a peer whose shortest run would take longer is skipped at that length")
        ->capture_default_str()
        ->check(CLI::Range(1.0, 600.0));
    sub->add_option("--quiet-line-ns", options->quiet_line_ns,
                    "rounds with a faster cache line count as quiet")
        ->capture_default_str();
    sub->callback([options] { run(*options); });
}

}  // namespace bench
