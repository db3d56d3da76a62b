#include "row.hpp"

#include <cmath>

namespace bench::scale {
namespace {

// Three digits are more than a model has.
double digits(double value) {
    if (value == 0) return 0;
    const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 2);
    const double cut = std::round(value / unit) * unit;
    return unit >= 1 ? std::round(cut) : std::round(cut * 1e6) / 1e6;
}

double gib(double bytes) {
    return digits(bytes / (std::uint64_t{1} << 30));
}

}  // namespace

Json row_of(const Settings& settings, const Outcome& outcome) {
    const Loss& loss = outcome.loss;
    Json row = {
        {"nodes", settings.nodes},
        {"workers", settings.all_workers()},
        {"rings", settings.rings},
        {"link Gbit/s", settings.link_gbit},
        {"bytes a token", settings.token_bytes},
        {"limit", outcome.limit},
        {"trainer idle", digits(outcome.idle_share)},
        {"workers generate", digits(outcome.generated_share)},
        {"wait for a place", digits(outcome.place_share)},
        {"wait for room", digits(outcome.room_share)},
        {"M tokens/s", digits(outcome.tokens_per_s / 1e6)},
        {"records/s", digits(outcome.records_per_s)},
        {"calls/s", digits(static_cast<double>(outcome.calls) / settings.measure_s)},
        {"receiver busy", digits(outcome.receiver_share)},
        {"copies busy", digits(outcome.copy_share)},
        {"trainer's link busy", digits(outcome.trainer_link_share)},
        {"node's link busy", digits(outcome.link_share)},
        {"open groups", digits(outcome.open_groups)},
        {"places", outcome.places},
        {"node GiB", gib(outcome.node_bytes)},
        {"node GiB reserved", gib(outcome.node_reserved)},
        {"trainer GiB", gib(outcome.trainer_held + outcome.trainer_waiting)},
        {"trainer GiB reserved", gib(outcome.trainer_reserved)},
        {"spilled GiB", gib(outcome.spilled_bytes)},
    };
    if (loss.nodes != 0) {
        row["nodes lost"] = loss.nodes;
        row["groups hit"] = loss.groups;
        row["rollouts lost"] = loss.rollouts;
        row["groups redone"] = loss.redone_groups;
        row["recovered s"] = digits(loss.recovered_s);
        row["redone s"] = digits(loss.redone_s);
        row["rate kept"] = digits(loss.rate_kept);
    }
    return row;
}

}  // namespace bench::scale
