// `rollring doctor`: finds what is wrong with the rings of this machine, and removes what is dead.

#include <fmt/format.h>

#include <memory>

#include "cli/commands/inspect.hpp"
#include "cli/formats/stat_report.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint64_t free_bytes_least = std::uint64_t{1} << 30;

constexpr const char* doctor_footer = R"(Examples:
  rollring doctor          # say what is there, change nothing
  rollring doctor --fix    # remove what is proven dead
Proven dead are rings that no living process uses and that are empty, unfinished or
damaged. A ring with unreleased records is never removed, even if nobody uses it: the
next consumer gets them; if you do not want them, `rollring rm`. Rings of incompatible
versions are only reported.
Exit code 1 if something is left that should not be there.)";

constexpr const char* verdict_names[] = {"healthy", "kept", "leftover", "problem"};

std::string advice(const RingDiagnosis& diagnosis) {
    switch (judge(diagnosis)) {
        case Verdict::healthy:
            return "in use";
        case Verdict::kept:
            return fmt::format(
                "nobody uses it, but it holds records: start a consumer, or `rollring "
                "rm {}`",
                diagnosis.name);
        case Verdict::leftover:
            return diagnosis.health == RingHealth::ok ? "empty, and nobody uses it"
                                                      : "left by a process that is gone";
        case Verdict::problem:
            return "for you to decide";
    }
    return {};
}

// What is said about /dev/shm; empty if there is enough of it.
std::string space_warning(const SharedMemorySpace& space) {
    if (space.free_bytes >= free_bytes_least) return {};
    return fmt::format(
        "/dev/shm has only {} free of {}: a ring needs lane-bytes for each producer. "
        "In a container, start it with --shm-size=8g",
        bytes_text(space.free_bytes), bytes_text(space.total_bytes));
}

int doctor(bool fix, bool json) {
    const SharedMemorySpace space = shared_memory_space();
    const std::string warning = space_warning(space);
    Json rings = Json::array();
    std::string text = fmt::format("/dev/shm: {} free of {}\n", bytes_text(space.free_bytes),
                                   bytes_text(space.total_bytes));
    if (!warning.empty()) text += "warning: " + warning + "\n";
    int left = 0;
    for (const auto& ring : list_rings()) {
        const RingDiagnosis diagnosis = diagnose_ring(ring);
        const Verdict verdict = judge(diagnosis);
        bool removed = false;
        std::string failure;
        if (fix && verdict == Verdict::leftover) {
            // Not forced: if someone came meanwhile, it stays.
            const auto done = remove_ring(ring, false);
            removed = done.has_value();
            if (!removed) failure = done.error().to_string();
        }
        const bool remains =
            verdict == Verdict::problem || (verdict == Verdict::leftover && !removed);
        left += remains ? 1 : 0;
        const char* verdict_name = verdict_names[static_cast<std::size_t>(verdict)];
        Json entry{{"ring", ring}, {"verdict", verdict_name}};
        add_fields(entry, diagnosis);
        entry["detail"] = diagnosis.detail;
        entry["removed"] = removed;
        rings.push_back(std::move(entry));
        text += fmt::format("{}: {} ({}): {}", ring, verdict_name, name(diagnosis.health),
                            advice(diagnosis));
        if (!diagnosis.detail.empty() && !removed) text += "; " + diagnosis.detail;
        if (removed) text += "; removed";
        if (!failure.empty()) text += "; not removed: " + failure;
        text += "\n";
    }
    const std::uint32_t dead = fix ? remove_dead_channels() : dead_channels();
    if (dead > 0) {
        text += fmt::format("weight channels: {} socket{} of dead publishers{}\n", dead,
                            dead == 1 ? "" : "s", fix ? "; removed" : "");
        if (!fix) left++;
    }
    if (json) {
        print_json({{"free_bytes", space.free_bytes},
                    {"total_bytes", space.total_bytes},
                    {"warning", warning.empty() ? Json() : Json(warning)},
                    {"rings", rings},
                    {"dead_channels", dead},
                    {"left", left}});
    } else {
        if (rings.empty()) text += "no rings\n";
        if (left != 0 && !fix) text += "`rollring doctor --fix` removes the leftovers\n";
        print(text);
    }
    return left == 0 ? exit_ok : exit_failed;
}

}  // namespace

Verdict judge(const RingDiagnosis& diagnosis) {
    if (diagnosis.health == RingHealth::foreign || diagnosis.health == RingHealth::incompatible ||
        diagnosis.health == RingHealth::unknown) {
        return Verdict::problem;
    }
    if (diagnosis.in_use) {
        return diagnosis.health == RingHealth::damaged ? Verdict::problem : Verdict::healthy;
    }
    if (diagnosis.health == RingHealth::ok && diagnosis.has_records) return Verdict::kept;
    if (diagnosis.health == RingHealth::ok && !diagnosis.used) return Verdict::healthy;
    return Verdict::leftover;
}

Command add_doctor(CLI::App& app) {
    struct Options {
        bool fix = false;
        bool json = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("doctor", "Find leftovers of the dead, and other trouble");
    sub->footer(doctor_footer);
    sub->add_flag("--fix", options->fix, "Remove the leftovers");
    sub->add_flag("--json", options->json, "Report as one JSON object on stdout");
    return {sub, [options] { return doctor(options->fix, options->json); }};
}

}  // namespace rollring::cli
