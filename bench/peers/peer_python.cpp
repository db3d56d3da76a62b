// Peers that live in Python: bench/peers/peers.py, one interpreter a run, driven from here.

#include <fmt/core.h>

#include "peers/peer.hpp"
#include "script.hpp"

namespace bench {
namespace {

Measured run_python(const PeerOptions& options, const std::string& key, const Plan& plan,
                    const Cpus& cpus) {
    Measured measured;
    measured.line_ns = line_ns(cpus);
    const std::string pins =
        (cpus.distinct() ? fmt::format("--cpus {},{}", cpus.producer, cpus.consumer) : "") +
        (cpus.realtime ? " --realtime" : "");
    // Its interpreter, its server and its records take a while before the run begins.
    const auto limit_s = static_cast<int>(options.most_seconds) + 20;
    const Turn turn;
    const ScriptOutput output = run_script(fmt::format(
        "'{}' '{}' --run {} --tokens {} --records {} --warmup {} --limit-s {} {}", options.python,
        options.script, key, plan.n_tokens, plan.records, plan.warmup, limit_s, pins));
    if (interrupted()) return measured;
    const Json result = output.last();
    if (output.status == 3) {  // a digest or a count was wrong: nothing to skip quietly
        fail(fmt::format("{}: {}", key, result.value("problem", "wrong records")));
    }
    if (output.status != 0 || !result.contains("seconds")) {
        const std::string ended = fmt::format("ended with status {}", output.status);
        throw PeerProblem{result.is_object() ? result.value("problem", ended) : ended};
    }
    const double tokens = static_cast<double>(plan.records) * plan.n_tokens;
    measured.tokens_per_s = tokens / result["seconds"].get<double>();
    return measured;
}

}  // namespace

std::vector<Peer> python_peers(const PeerOptions& options) {
    const ScriptOutput output =
        run_script(fmt::format("'{}' '{}' --probe", options.python, options.script));
    const Json found = output.last();
    if (output.status != 0 || !found.contains("peers")) {
        return {{.key = "python",
                 .name = "Python peers",
                 .run = {},
                 .missing = fmt::format("'{}' cannot be run", options.python)}};
    }
    std::vector<Peer> peers;
    for (const Json& one : found["peers"]) {
        const auto key = one["key"].get<std::string>();
        peers.push_back(
            {.key = key,
             .name = one["name"].get<std::string>(),
             .run = [=](const Plan& plan,
                        const Cpus& cpus) { return run_python(options, key, plan, cpus); },
             .first_records = one["first_records"].get<std::uint64_t>(),
             .unit = one["unit"].get<std::uint64_t>(),
             .missing = one["missing"].get<std::string>()});
    }
    return peers;
}

}  // namespace bench
