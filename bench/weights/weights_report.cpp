#include "weights/weights_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace bench {
namespace {

constexpr std::int64_t growth_bytes_most = std::int64_t{64} << 20;

double ms(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-6;
}

struct Stage {
    const char* name;
    std::int64_t rollring::SyncTimes::* time;
};
constexpr std::array stages{Stage{"wait_slot", &rollring::SyncTimes::wait_slot_ns},
                            Stage{"put", &rollring::SyncTimes::put_ns},
                            Stage{"publish", &rollring::SyncTimes::publish_ns},
                            Stage{"staged", &rollring::SyncTimes::staged_ns},
                            Stage{"commit", &rollring::SyncTimes::commit_ns}};

std::vector<double> syncs_ms(const Round& round) {
    std::vector<double> all;
    all.reserve(round.session.samples.size());
    for (const Sample& sample : round.session.samples) all.push_back(ms(sample.whole_ns));
    return all;
}

// Of all versions in all rounds.
Figures figures_of(const WeightsRun& run) {
    Figures figures;
    for (const Round& round : run.rounds) {
        const double ours = Spread::of(syncs_ms(round)).median;
        for (const Sample& sample : round.session.samples) {
            figures.add("sync_ms", ms(sample.whole_ns));
            figures.add("live_ms", ms(sample.live_ns));
            figures.add("control_us", ms(sample.control_ns) * 1e3);
            figures.add("two_copies_ms", ms(sample.copies_ns));
            // Each version against the copies just before it.
            figures.add("cost", static_cast<double>(sample.whole_ns) /
                                    std::max(1.0, static_cast<double>(sample.copies_ns)));
            for (const Stage& stage : stages) figures.add(stage.name, ms(sample.times.*stage.time));
        }
        for (const TorchRow& row : round.torch) {
            figures.add("torch " + row.method, row.ms);
            figures.add("times " + row.method, row.ms / ours);
        }
    }
    return figures;
}

// Of some versions of a session: by difference, those that change as many elements.
Json way_json(const SessionReport& session, std::size_t first, std::size_t versions) {
    Figures figures;
    for (std::size_t i = first; i < first + versions; i++) {
        const Sample& sample = session.samples[i];
        const EngineSample& engine = session.engine_samples[i];
        figures.add("sync_ms", ms(sample.whole_ns));
        figures.add("live_ms", ms(sample.live_ns));
        figures.add("two_copies_ms", ms(sample.copies_ns));
        figures.add("pause_ms", ms(engine.pause_ns));
        if (session.way != SyncWay::difference) continue;
        const rollring::DeltaReport& delta = engine.delta;
        const auto compared = static_cast<double>(std::max<std::uint64_t>(1, delta.elements));
        figures.add("compare_ms", ms(delta.compare_ns));
        figures.add("swap_ms", ms(delta.swap_ns));
        figures.add("found", static_cast<double>(delta.changed) / compared);
        figures.add("list_bytes", static_cast<double>(delta.list_bytes));
    }
    Json row{{"way", name(session.way)}};
    figures.append_to(row);
    return row;
}

Json ways_json(const WeightsRun& run) {
    Json rows;
    const SessionReport& session = run.rounds.front().session;
    for (std::size_t i = 0; i < run.plan.changed.size(); i++) {
        rows.push_back(way_json(session, i * run.plan.versions, run.plan.versions));
        rows.back()["changed"] = run.plan.changed[i];
    }
    for (const SessionReport& other : run.other_ways) {
        rows.push_back(way_json(other, 0, other.samples.size()));
    }
    return rows;
}

Json percentiles(std::vector<double> all) {
    std::ranges::sort(all);
    const auto at = [&](double share) {
        return all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
    };
    return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"p999", at(0.999)}};
}

Json side_json(const SideReport& side) {
    const auto held = [](const Holdings& one) {
        return Json{{"device_free_bytes", one.device_free_bytes},
                    {"fds", one.fds},
                    {"rss_bytes", one.rss_bytes},
                    {"shm_objects", one.shm_objects},
                    {"shm_bytes", one.shm_bytes}};
    };
    return {{"early", held(side.early)},
            {"last", held(side.last)},
            {"handles_early", side.passed_early},
            {"handles_last", side.passed_last}};
}

// The growth of one side from the first versions to the end; empty if nothing grew.
std::string growth(const char* who, const SideReport& side) {
    std::string grown;
    const auto look = [&](const char* what, std::int64_t more, std::int64_t most) {
        if (more > most) grown += fmt::format("{}: {} grew by {}; ", who, what, more);
    };
    look("open descriptors", side.last.fds - side.early.fds, 0);
    look("resident bytes", side.last.rss_bytes - side.early.rss_bytes, growth_bytes_most);
    look("device bytes in use", side.early.device_free_bytes - side.last.device_free_bytes,
         growth_bytes_most);
    look("handles passed", static_cast<std::int64_t>(side.passed_last - side.passed_early), 0);
    return grown;
}

}  // namespace

Json report_json(const WeightsRun& run) {
    const SessionPlan& plan = run.plan;
    const SessionReport& first = run.rounds.front().session;
    const Figures figures = figures_of(run);
    const double sync_ms = figures.spread("sync_ms").median;
    Json where = machine({});
    where.erase("pinned");
    Json out{{"question", "weights"},
             {"machine", where},
             {"device", run.device},
             {"list", plan.list_name},
             {"tensors", plan.list.size()},
             {"scale", plan.share},
             {"payload_bytes", first.payload_bytes},
             {"memory", rollring::name(first.memory)},
             {"parts", first.parts},
             {"slots", first.slots},
             {"checksums", plan.checksums},
             {"cast", plan.cast},
             {"sessions", run.rounds.size()},
             {"versions", plan.versions},
             {"sync_ms", figures.spread("sync_ms").json()},
             {"live_ms", figures.spread("live_ms").json()},
             {"gb_per_s", static_cast<double>(first.payload_bytes) / (sync_ms * 1e6)},
             {"control_us", percentiles(figures.of("control_us"))}};
    for (const Stage& stage : stages) {
        out["stages_ms"][stage.name] = figures.spread(stage.name).json();
    }
    if (plan.copies && first.payload_bytes != 0) {
        out["two_copies_ms"] = figures.spread("two_copies_ms").json();
        out["cost"] = figures.spread("cost").json();
    }
    if (plan.way == SyncWay::difference) out["ways"] = ways_json(run);
    for (const TorchRow& row : run.rounds.front().torch) {
        out["torch"].push_back({{"method", row.method},
                                {"ms", figures.spread("torch " + row.method).json()},
                                {"times_ours", figures.spread("times " + row.method).json()}});
    }
    constexpr std::size_t listed_most = 1000;
    const auto& repeats = figures.of("sync_ms");
    if (repeats.size() <= listed_most) out["repeats_ms"] = repeats;
    out["trainer"] = side_json(run.rounds.back().session.trainer);
    out["engine"] = side_json(run.rounds.back().session.engine);
    const auto verified = [](const auto& session) { return session.verified(); };
    out["verified"] = std::ranges::all_of(run.rounds, verified, &Round::session) &&
                      std::ranges::all_of(run.other_ways, verified);
    return out;
}

std::string problem_of(const WeightsRun& run) {
    std::string problem;
    const auto look_at = [&](const SessionReport& session) {
        if (!session.verified()) {
            problem += fmt::format(
                "the engine's digest ({:#018x}) differs from the trainer's ({:#018x}) {}; ",
                session.engine.digest, session.trainer.digest, name(session.way));
        }
        if (run.plan.soak) problem += growth("trainer", session.trainer);
        if (run.plan.soak) problem += growth("engine", session.engine);
    };
    for (const Round& round : run.rounds) look_at(round.session);
    for (const SessionReport& other : run.other_ways) look_at(other);
    return problem;
}

}  // namespace bench
