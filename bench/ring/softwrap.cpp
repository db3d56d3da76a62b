// Question: what is it worth that a drained lane turns back early and stays in cache?

#include <fmt/core.h>

#include "questions.hpp"
#include "ring/ring_transport.hpp"

namespace bench {
namespace {

Json measure_length(const SoftwrapQuestion& options, std::uint32_t n_tokens, const Cpus& cpus,
                    Progress& progress) {
    RingTransport on;
    on.lane_bytes = parse_bytes(options.lane_bytes);
    on.soft_bytes = parse_bytes(options.soft_bytes);
    RingTransport off = on;
    off.soft_bytes = off.lane_bytes;  // never
    Plan plan{.n_tokens = n_tokens};
    // A whole lap of the lane first: its pages are then in both processes' tables.
    plan.warmup = on.lane_bytes / plan.record_bytes() + 8;
    const BareHandoff near(n_tokens, on.soft_bytes);
    const BareHandoff far(n_tokens, on.lane_bytes);
    plan.records = options.records != 0
                       ? options.records
                       : calibrate(near.transport(), plan, cpus, options.common.seconds);
    Figures figures;
    Measured with;
    Measured without;
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("soft wrap on, {} tokens", n_tokens));
        with = measure_ring(on, plan, cpus);
        progress.step(fmt::format("soft wrap off, {} tokens", n_tokens));
        without = measure_ring(off, plan, cpus);
        progress.step(fmt::format("limit, {} tokens", n_tokens));
        // The bare hand-off over buffers of the soft wrap's bytes, over that of a lane's.
        const double limit = measure(near.transport(), plan, cpus).tokens_per_s /
                             measure(far.transport(), plan, cpus).tokens_per_s;
        if (interrupted()) break;
        figures.add("on_tokens_per_s", with.tokens_per_s);
        figures.add("off_tokens_per_s", without.tokens_per_s);
        figures.add("gain", with.tokens_per_s / without.tokens_per_s);
        figures.add("bare_gain", limit);
        figures.add("line_ns", with.line_ns);
        figures.add("line_ns", without.line_ns);
    }
    Json row = {{"tokens", n_tokens}};
    figures.append_to(row);
    row["laps_soft_when_on"] = with.figures[1];
    row["laps_full_when_off"] = without.figures[2];
    return row;
}

}  // namespace

void run(const SoftwrapQuestion& options) {
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "softwrap"},
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
