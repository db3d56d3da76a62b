// Question: what does a run notice of the viewers that tap its ring?

#include <fmt/core.h>

#include "questions.hpp"
#include "ring/ring_transport.hpp"

namespace bench {
namespace {

Json measure_length(const TapsQuestion& options, std::uint32_t n_tokens, const Cpus& cpus,
                    Progress& progress) {
    RingTransport none;
    none.lane_bytes = parse_bytes(options.lane_bytes);
    none.soft_bytes = parse_bytes(options.soft_bytes);
    RingTransport with = none;
    with.taps = options.taps;
    Plan plan{.n_tokens = n_tokens};
    plan.warmup = none.lane_bytes / plan.record_bytes() + 8;
    const BareHandoff bare(n_tokens, none.soft_bytes);
    plan.records = calibrate(bare.transport(), plan, cpus, options.common.seconds);
    Figures figures;
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("no tap, {} tokens", n_tokens));
        const double alone = measure_ring(none, plan, cpus).tokens_per_s;
        progress.step(fmt::format("{} taps, {} tokens", options.taps, n_tokens));
        const double tapped = measure_ring(with, plan, cpus).tokens_per_s;
        progress.step(fmt::format("no tap again, {} tokens", n_tokens));
        const double again = measure_ring(none, plan, cpus).tokens_per_s;
        if (interrupted()) break;
        figures.add("tokens_per_s", alone);
        figures.add("tapped_tokens_per_s", tapped);
        figures.add("ratio", 2 * tapped / (alone + again));
        figures.add("ratio_without", again / alone);
    }
    Json row = {{"tokens", n_tokens}, {"taps", options.taps}};
    figures.append_to(row);
    return row;
}

}  // namespace

void run(const TapsQuestion& options) {
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "taps"},
                {"machine", machine(cpus)},
                {"lane_bytes", options.lane_bytes},
                {"soft_bytes", options.soft_bytes}};
    {
        Progress progress(3 * options.tokens.size() * options.common.repeat);
        for (const std::uint32_t n_tokens : options.tokens) {
            out["rows"].push_back(measure_length(options, n_tokens, cpus, progress));
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
