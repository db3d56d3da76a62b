#include "ring/latency_paced.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace bench {

Paced::Paced(PacedOptions options) : options_(std::move(options)) {
    rows_.push_back({.name = "bare record", .way = Way::bare_record});
    for (const std::uint32_t lanes : options_.lanes) {
        rows_.push_back({.name = fmt::format("rollring, {} lane{}", lanes, lanes == 1 ? "" : "s"),
                         .way = Way::ring_spinning,
                         .lanes = lanes});
    }
    rows_.push_back(
        {.name = "bare record, from the first", .way = Way::bare_record, .warm = false});
    rows_.push_back({.name = "rollring, from the first", .way = Way::ring_spinning, .warm = false});
}

Measurement Paced::measure(const Row& row, bool whole_push, const Cpus& cpus) const {
    return measure_delays(row.way,
                          {.n_tokens = options_.n_tokens,
                           .records = options_.records,
                           .gap_ns = options_.gap_us * 1000,
                           .lanes = row.lanes,
                           .warm = row.warm,
                           .whole_push = whole_push},
                          cpus);
}

void Paced::run_round(const Cpus& cpus, Progress& progress) {
    for (Row& row : rows_) {
        // Where the ring's push ends in a flush() of its own, its commit has no time.
        const bool twice = row.way == Way::ring_spinning && row.warm;
        if (twice) {
            progress.step(row.name + ", from commit");
            row.from_commit.add(measure(row, false, cpus).from_commit);
        }
        progress.step(row.name);
        const Measurement found = measure(row, true, cpus);
        if (interrupted()) return;
        row.from_push.add(found.from_due);
        if (row.way == Way::bare_record) row.from_commit.add(found.from_commit);
        for (const Row& bare : rows_) {
            if (bare.way == Way::bare_record && bare.warm == row.warm) compare(row, bare);
        }
    }
}

void Paced::compare(Row& row, const Row& bare) const {
    const auto ratio = [](const Percentiles& mine, const Percentiles& theirs, std::size_t share) {
        if (mine.rounds[share].empty()) return 0.0;
        return mine.rounds[share].back() / std::max(theirs.rounds[share].back(), 1.0);
    };
    for (const std::size_t share : {0, 1}) {
        row.ratios[share].push_back(ratio(row.from_commit, bare.from_commit, share));
        row.ratios[2 + share].push_back(ratio(row.from_push, bare.from_push, share));
    }
}

Json Paced::json() const {
    Json out = {{"tokens", options_.n_tokens}, {"gap_us", options_.gap_us}};
    for (const Row& row : rows_) {
        Json one = {{"name", row.name}, {"lanes", row.lanes}, {"warm", row.warm}};
        if (!row.from_commit.rounds[0].empty()) one["from_commit"] = row.from_commit.json();
        one["from_push"] = row.from_push.json();
        if (row.way != Way::bare_record) {
            constexpr std::array names = {"p50_from_commit", "p99_from_commit", "p50_from_push",
                                          "p99_from_push"};
            for (std::size_t i = row.warm ? 0 : 2; i < names.size(); i++) {
                one["of_bare_record"][names[i]] = Spread::of(row.ratios[i]).json();
            }
        }
        out["rows"].push_back(std::move(one));
    }
    return out;
}

}  // namespace bench
