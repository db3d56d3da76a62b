#include "weights_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace bench {
namespace {

constexpr std::int64_t growth_bytes_most = std::int64_t{64} << 20;

double ms(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-6;
}

template <class Value>
std::vector<double> values(const WeightsRun& run, const Value& value) {
    std::vector<double> all;
    for (const Round& round : run.rounds) {
        for (const Sample& sample : round.session.samples) all.push_back(value(sample));
    }
    return all;
}

template <class Value>
Spread spread(const WeightsRun& run, const Value& value) {
    return Spread::of(values(run, value));
}

Spread whole_ms(const WeightsRun& run) {
    return spread(run, [](const Sample& sample) { return ms(sample.whole_ns); });
}
Spread copies_ms(const WeightsRun& run) {
    return spread(run, [](const Sample& sample) { return ms(sample.copies_ns); });
}
// Each version against the copies just before it.
Spread cost(const WeightsRun& run) {
    return spread(run, [](const Sample& sample) {
        return static_cast<double>(sample.whole_ns) /
               static_cast<double>(std::max<std::int64_t>(1, sample.copies_ns));
    });
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

Spread stage_ms(const WeightsRun& run, const Stage& stage) {
    return spread(run, [&](const Sample& sample) { return ms(sample.times.*stage.time); });
}

bool has_copies(const WeightsRun& run) {
    return run.plan.copies && run.rounds.front().session.payload_bytes != 0;
}

double rate_gb_per_s(const WeightsRun& run) {
    const auto bytes = static_cast<double>(run.rounds.front().session.payload_bytes);
    return bytes / (whole_ms(run).median * 1e6);
}

struct Percentiles {
    double p50;
    double p99;
    double p999;
};
Percentiles control_us(const WeightsRun& run) {
    auto all = values(run, [](const Sample& one) { return ms(one.control_ns) * 1e3; });
    std::ranges::sort(all);
    const auto at = [&](double share) {
        return all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
    };
    return {at(0.5), at(0.99), at(0.999)};
}

// Of one method over the rounds, and how many times ours it took in each.
struct TorchSpread {
    std::string method;
    Spread took_ms;
    Spread times_ours;
};
std::vector<TorchSpread> torch_spreads(const WeightsRun& run) {
    std::vector<TorchSpread> all;
    for (std::size_t i = 0; i < run.rounds.front().torch.size(); i++) {
        std::vector<double> took;
        std::vector<double> times;
        for (const Round& round : run.rounds) {
            WeightsRun alone{.plan = run.plan, .rounds = {round}};
            took.push_back(round.torch[i].ms);
            times.push_back(round.torch[i].ms / whole_ms(alone).median);
        }
        all.push_back({run.rounds.front().torch[i].method, Spread::of(took), Spread::of(times)});
    }
    return all;
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

// What one side holds more at the end than after the first versions; empty if nothing does.
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

std::string side_text(const char* who, const SideReport& side) {
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    return fmt::format(
        "{}: fds {} -> {}, resident {:.1f} -> {:.1f} MiB, device free {:.1f} -> {:.1f} MiB, "
        "/dev/shm {} objects {:.1f} MiB -> {} objects {:.1f} MiB, handles {} -> {}\n",
        who, side.early.fds, side.last.fds, mib(side.early.rss_bytes), mib(side.last.rss_bytes),
        mib(side.early.device_free_bytes), mib(side.last.device_free_bytes), side.early.shm_objects,
        mib(side.early.shm_bytes), side.last.shm_objects, mib(side.last.shm_bytes),
        side.passed_early, side.passed_last);
}

std::string head_text(const WeightsRun& run) {
    const SessionPlan& plan = run.plan;
    const SessionReport& first = run.rounds.front().session;
    return fmt::format(
        "{} ({} CPUs); {}\n{}: {} tensors, {:.3f} GB published, scale {:.4g}{}{}; {} parts through "
        "{} slots, memory {}; {} versions in {} sessions\n",
        machine({})["cpu"].get<std::string>(), machine({})["cpus"].get<int>(), run.device,
        plan.list_name, plan.list.size(), static_cast<double>(first.payload_bytes) / 1e9,
        plan.share, plan.cast ? ", f32 published as bf16" : "",
        plan.checksums ? ", with checksums" : "", first.parts, first.slots,
        rollring::name(first.memory), plan.versions, run.rounds.size());
}

}  // namespace

Json report_json(const WeightsRun& run) {
    const SessionPlan& plan = run.plan;
    const SessionReport& first = run.rounds.front().session;
    const Percentiles control = control_us(run);
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
             {"sync_ms", whole_ms(run).json()},
             {"gb_per_s", rate_gb_per_s(run)},
             {"control_us", {{"p50", control.p50}, {"p99", control.p99}, {"p999", control.p999}}}};
    for (const Stage& stage : stages) out["stages_ms"][stage.name] = stage_ms(run, stage).json();
    if (has_copies(run)) {
        out["two_copies_ms"] = copies_ms(run).json();
        out["cost"] = cost(run).json();
    }
    for (const TorchSpread& row : torch_spreads(run)) {
        out["torch"].push_back({{"method", row.method},
                                {"ms", row.took_ms.json()},
                                {"times_ours", row.times_ours.json()}});
    }
    constexpr std::size_t listed_most = 1000;
    auto repeats = values(run, [](const Sample& sample) { return ms(sample.whole_ns); });
    if (repeats.size() <= listed_most) out["repeats_ms"] = repeats;
    out["trainer"] = side_json(run.rounds.back().session.trainer);
    out["engine"] = side_json(run.rounds.back().session.engine);
    out["verified"] = std::ranges::all_of(
        run.rounds, [](const Round& round) { return round.session.verified(); });
    return out;
}

std::string report_text(const WeightsRun& run) {
    const Spread whole = whole_ms(run);
    std::string text = head_text(run);
    text += fmt::format("begin to commit: {:.3f} ms [{:.3f}-{:.3f}], {:.2f} GB/s\n", whole.median,
                        whole.low, whole.high, rate_gb_per_s(run));
    text += " ";
    for (const Stage& stage : stages) {
        text += fmt::format(" {} {:.3f}", stage.name, stage_ms(run, stage).median);
    }
    text += " ms (medians; wait_slot is part of put)\n";
    if (has_copies(run)) {
        const Spread two = copies_ms(run);
        const Spread ratio = cost(run);
        text += fmt::format(
            "two plain copies: {:.3f} ms [{:.3f}-{:.3f}]; a sync takes {:.3f} [{:.3f}-{:.3f}] "
            "times as long\n",
            two.median, two.low, two.high, ratio.median, ratio.low, ratio.high);
    }
    const Percentiles control = control_us(run);
    text += fmt::format("publish to commit: p50 {:.1f}, p99 {:.1f}, p99.9 {:.1f} us\n", control.p50,
                        control.p99, control.p999);
    for (const TorchSpread& row : torch_spreads(run)) {
        text += fmt::format(
            "torch, {:<10} {:>10.3f} ms [{:.3f}-{:.3f}], {:.2f} [{:.2f}-{:.2f}] times ours\n",
            row.method + ":", row.took_ms.median, row.took_ms.low, row.took_ms.high,
            row.times_ours.median, row.times_ours.low, row.times_ours.high);
    }
    if (run.plan.soak) {
        text += side_text("trainer", run.rounds.back().session.trainer);
        text += side_text("engine", run.rounds.back().session.engine);
    }
    return text;
}

std::string problem_of(const WeightsRun& run) {
    std::string problem;
    for (const Round& round : run.rounds) {
        const SessionReport& session = round.session;
        if (!session.verified()) {
            problem += fmt::format(
                "what the engine holds ({:#018x}) is not what was sent "
                "({:#018x}); ",
                session.engine.digest, session.trainer.digest);
        }
        if (run.plan.soak) problem += growth("trainer", session.trainer);
        if (run.plan.soak) problem += growth("engine", session.engine);
    }
    return problem;
}

}  // namespace bench
