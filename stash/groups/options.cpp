#include <fmt/core.h>

#include <cmath>

#include "rollring/stash.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

Result<void> validate(const StashOptions& options) {
    const auto refuse = [](std::string why) {
        return refused(Errc::invalid_argument, "stash: " + std::move(why));
    };
    if (options.group_size < 1 || options.group_size > group_size_max) {
        return refuse(
            fmt::format("group_size is {}, must be 1 to {}", options.group_size, group_size_max));
    }
    if (options.extra > group_size_max) {
        return refuse(fmt::format("extra is {}, at most {}", options.extra, group_size_max));
    }
    constexpr std::int64_t century_ns = 3'155'760'000'000'000'000;  // added to the clock, it fits
    if (options.due_after().count() <= 0) return refuse("deadline must be positive");
    if (options.due_after().count() > century_ns) return refuse("deadline is more than a century");
    if (!options.deadline && options.when_due() != AtDeadline::hold) {
        return refuse(
            fmt::format("at_deadline is {}, but no deadline is given: say how old a "
                        "group may become",
                        name(options.when_due())));
    }
    if (options.advanced.tombstone.count() > century_ns)
        return refuse("tombstone is more than a century");
    if (options.min_size < 1) return refuse("min_size must be 1 or more");
    if (!(options.advanced.zero_variance_tolerance >= 0)) {
        return refuse("zero_variance_tolerance must be 0 or more");
    }
    if (!(options.advanced.deviation_epsilon >= 0) ||
        !std::isfinite(options.advanced.deviation_epsilon)) {
        return refuse(fmt::format("deviation_epsilon is {}, must be 0 or more",
                                  options.advanced.deviation_epsilon));
    }
    if (options.max_lag < -1) return refuse("max_lag must be -1 (any) or more");
    if (!(options.advanced.window_fraction > 0 && options.advanced.window_fraction <= 1)) {
        return refuse(fmt::format("window_fraction is {}, must be over 0 and at most 1",
                                  options.advanced.window_fraction));
    }
    if (options.batch.amount() == 0) {
        return refuse(
            fmt::format("batch has 0 {}, must have 1 or more", name(options.batch.unit())));
    }
    for (const SourceWeight& source : options.advanced.source_weights) {
        if (!(source.weight > 0) || !std::isfinite(source.weight)) {
            return refuse(fmt::format("source_weights: source {} has weight {}, must be positive",
                                      source.source_id, source.weight));
        }
    }
    if (options.advanced.tombstone.count() < 0) return refuse("tombstone must be 0 or more");
    if (options.advanced.no_progress.count() <= 0) return refuse("no_progress must be positive");
    return {};
}

std::string_view name(DropReason reason) {
    switch (reason) {
        case DropReason::duplicate:
            return "duplicate";
        case DropReason::superseded:
            return "superseded";
        case DropReason::late:
            return "late";
        case DropReason::surplus:
            return "surplus";
        case DropReason::failed:
            return "failed";
        case DropReason::bad_reward:
            return "bad_reward";
        case DropReason::group_void:
            return "group_void";
        case DropReason::too_few:
            return "too_few";
        case DropReason::deadline:
            return "deadline";
        case DropReason::zero_variance:
            return "zero_variance";
        case DropReason::stale:
            return "stale";
        case DropReason::unfinished:
            return "unfinished";
        case DropReason::mixed_numbers:
            return "mixed_numbers";
        case DropReason::oversized:
            return "oversized";
        case DropReason::count:
            break;
    }
    return "unknown";
}

Amount StashAccount::dropped_total() const {
    Amount sum;
    for (const Amount& amount : dropped) sum += amount;
    return sum;
}

bool StashAccount::conserved() const {
    Amount sum = dropped_total();
    sum += shipped;
    sum += held;
    sum += leased;
    return sum == accepted;
}

}  // namespace rollring
