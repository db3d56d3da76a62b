// `rollring doctor`: finds the problems of this machine's rings, and removes dead ones.

#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "cli/commands/inspect.hpp"
#include "cli/commands/passed_on.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/terminal/colour.hpp"
#include "rollring/ring.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint64_t free_bytes_least = std::uint64_t{1} << 30;

constexpr const char* doctor_footer = R"(Examples:
  rollring doctor          # report only
  rollring doctor --fix    # also remove stale rings
A ring is stale if no live process uses it and it is damaged, or its creator died before
it was finished, or its owner has ended (demo, a RingQueue without a name). A sound ring
is never removed, used or not: an idle one may belong to a run between two restarts, and
one with records waits for its next consumer. `rollring rm` removes those. Rings of
incompatible versions are only reported. Objects of a removed ring
(/dev/shm/rollring.UID.NAME~...) are stale, too.
Exit code 1 if a stale or unusable ring is left.)";

constexpr const char* verdict_names[] = {"healthy", "kept", "leftover", "problem"};

// The store that has the ring as one of its two; empty: there is none.
std::string store_of(std::string_view ring) {
    constexpr std::string_view second = ".clears";
    const std::string store(ring.ends_with(second) ? ring.substr(0, ring.size() - second.size())
                                                   : ring);
    const auto stat = stat_ring(store);
    if (!stat || stat->schema.columns().back().name != "value") return {};
    return stat_ring(store + std::string(second)) ? store : "";
}

std::string advice(const RingDiagnosis& diagnosis) {
    switch (judge(diagnosis)) {
        case Verdict::healthy:
            return diagnosis.in_use ? "in use" : "idle: empty, no process is attached";
        case Verdict::kept:
            if (const std::string store = store_of(diagnosis.name); !store.empty()) {
                return fmt::format(
                    "has values of store {}, no process is attached: a consumer would take them, "
                    "and Store.remove(\"{}\") discards them",
                    store, store);
            }
            return fmt::format(
                "holds records, no process is attached: start a consumer, or discard them with "
                "`rollring rm {}`",
                diagnosis.name);
        case Verdict::leftover:
            return diagnosis.orphaned ? "its owner has ended" : "left behind by a dead process";
        case Verdict::problem:
            return fmt::format("never removed automatically: `rollring rm {}`", diagnosis.name);
    }
    return {};
}

std::string bound_text(const MemoryBound& bound) {
    if (bound.kind == MemoryBound::Kind::files) {
        return fmt::format("{}: {} free of {}", bound.name, count_text(bound.free),
                           count_text(bound.total));
    }
    return fmt::format("{}: {} free of {}", bound.name, bytes_text(bound.free),
                       bytes_text(bound.total));
}

// A text on the lowest limit of memory; empty if there is enough.
std::string space_warning(const std::vector<MemoryBound>& bounds) {
    for (const MemoryBound& bound : bounds) {
        const bool is_short = bound.kind == MemoryBound::Kind::files
                                  ? bound.free == 0
                                  : bound.free < free_bytes_least;
        if (!is_short) continue;
        return fmt::format(
            "{}. Each producer takes a lane (--lane-bytes), and `rollring size` says how much a "
            "run needs; {}",
            bound_text(bound),
            bound.kind == MemoryBound::Kind::space
                ? "a container gets more of it with --shm-size, a pod with an emptyDir of medium "
                  "Memory"
                : bound.remedy);
    }
    return {};
}

Json bounds_json(const std::vector<MemoryBound>& bounds) {
    Json all = Json::array();
    for (const MemoryBound& bound : bounds) {
        all.push_back({{"name", bound.name}, {"free", bound.free}, {"total", bound.total}});
    }
    return all;
}

// Not forced: a ring that has come into use meanwhile stays.
Result<void> remove_leftover(const RingDiagnosis& diagnosis) {
    if (!diagnosis.orphaned) return remove_ring(diagnosis.name, false);
    remove_orphaned_rings();
    if (diagnose_ring(diagnosis.name).health != RingHealth::ok) return {};
    return refused(Errc::busy, "it is in use again");
}

std::string memory_text(const SharedMemorySpace& space, const std::vector<MemoryBound>& bounds,
                        const std::string& warning) {
    std::string text = fmt::format("/dev/shm: {} free of {}\n", bytes_text(space.free_bytes),
                                   bytes_text(space.total_bytes));
    if (!bounds.empty() && bounds.front().name != "/dev/shm") {
        text += "least memory: " + bound_text(bounds.front()) + "\n";
    }
    for (const MemoryBound& bound : bounds) {  // limits on lengths
        const bool is_limit = bound.kind == MemoryBound::Kind::object_length ||
                              bound.kind == MemoryBound::Kind::address_space;
        if (is_limit) text += bound_text(bound) + "\n";
    }
    if (!warning.empty()) {
        text += painted(Style::warning, "warning: " + warning, STDOUT_FILENO) + "\n";
    }
    return text;
}

// The objects beside rings that are gone, and dead publishers' sockets. Adds those that stay to
// `left`.
std::string others_text(bool fix, const std::vector<std::string>& leftovers, std::uint32_t dead,
                        int& left) {
    std::string text;
    const char* removed = fix ? "; removed" : "";
    for (const std::string& name : leftovers) {
        text += fmt::format("/dev/shm{}: leftover: its ring is gone{}\n", name, removed);
    }
    if (dead > 0) {
        text += fmt::format("weight channels: {} socket{} of dead publishers{}\n", dead,
                            dead == 1 ? "" : "s", removed);
    }
    if (!fix) left += static_cast<int>(leftovers.size()) + (dead > 0 ? 1 : 0);
    return text;
}

int doctor(bool fix, bool json) {
    const SharedMemorySpace space = shared_memory_space();
    const std::vector<MemoryBound> bounds = memory_bounds();
    const std::string warning = space_warning(bounds);
    Json rings = Json::array();
    std::string text = memory_text(space, bounds, warning);
    int left = 0;
    for (const auto& ring : list_rings()) {
        const RingDiagnosis diagnosis = diagnose_ring(ring);
        const Verdict verdict = judge(diagnosis);
        bool removed = false;
        std::string failure;
        if (fix && verdict == Verdict::leftover) {
            const auto done = remove_leftover(diagnosis);
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
    const std::vector<std::string> leftovers = list_leftovers();
    if (fix) remove_leftovers();
    text += others_text(fix, leftovers, dead, left);
    if (json) {
        print_json({{"free_bytes", space.free_bytes},
                    {"total_bytes", space.total_bytes},
                    {"bounds", bounds_json(bounds)},
                    {"warning", warning.empty() ? Json() : Json(warning)},
                    {"rings", rings},
                    {"leftovers", leftovers},
                    {"dead_channels", dead},
                    {"left", left}});
    } else {
        if (rings.empty()) text += "no rings\n";
        if (left != 0 && !fix) text += "`rollring doctor --fix` removes stale rings\n";
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
    if (diagnosis.health != RingHealth::ok || diagnosis.orphaned) return Verdict::leftover;
    return diagnosis.has_records ? Verdict::kept : Verdict::healthy;
}

Command add_doctor(CLI::App& app) {
    struct Options {
        bool fix = false;
        bool json = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand(doctor_line.name, doctor_line.summary);
    sub->footer(doctor_footer);
    sub->add_flag("--fix", options->fix,
                  "Remove damaged and unfinished rings, and those of an owner that has ended");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    return {sub, [options] { return doctor(options->fix, options->json); }};
}

}  // namespace rollring::cli
