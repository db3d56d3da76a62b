#include "rollring/batch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace rollring {
namespace {

constexpr std::uint32_t parts_most = 65'536;

// A run of sequences that goes to one rank as a whole.
struct Unit {
    std::uint32_t begin;
    std::uint32_t end;
    std::uint64_t tokens;
};

std::vector<Unit> units_of(const Sequences& batch, bool whole_groups) {
    std::vector<Unit> units;
    const auto add = [&](std::uint32_t begin, std::uint32_t end) {
        const std::int64_t tokens = batch.cu_seqlens()[end] - batch.cu_seqlens()[begin];
        units.push_back({begin, end, static_cast<std::uint64_t>(tokens)});
    };
    if (whole_groups) {
        for (std::size_t g = 0; g < batch.groups().size(); g++) {
            add(batch.group_offsets()[g], batch.group_offsets()[g + 1]);
        }
    } else {
        for (std::uint32_t i = 0; i < batch.sequences().size(); i++) add(i, i + 1);
    }
    return units;
}

// The part of each unit: the longest unit first, each to the part with the fewest tokens. Of equals
// the first goes first.
std::vector<std::uint32_t> balanced(const std::vector<Unit>& units, std::uint32_t parts) {
    std::vector<std::uint32_t> order(units.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
        return std::pair(units[b].tokens, a) < std::pair(units[a].tokens, b);
    });
    using Load = std::pair<std::uint64_t, std::uint32_t>;  // tokens, part
    std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
    for (std::uint32_t part = 0; part < parts; part++) loads.push({0, part});
    std::vector<std::uint32_t> part_of(units.size());
    for (const std::uint32_t unit : order) {
        const auto [tokens, part] = loads.top();
        loads.pop();
        part_of[unit] = part;
        loads.push({tokens + units[unit].tokens, part});
    }
    return part_of;
}

// Runs of units of equal length, of which the first ones have one more if necessary.
std::vector<std::uint32_t> in_runs(const std::vector<Unit>& units, std::uint32_t parts) {
    std::vector<std::uint32_t> part_of;
    part_of.reserve(units.size());
    const std::size_t each = units.size() / parts;
    for (std::uint32_t part = 0; part < parts; part++) {
        part_of.insert(part_of.end(), each + (part < units.size() % parts ? 1 : 0), part);
    }
    return part_of;
}

}  // namespace

std::string_view name(SplitBy by) {
    switch (by) {
        case SplitBy::tokens:
            return "tokens";
        case SplitBy::group_tokens:
            return "group_tokens";
        case SplitBy::sequences:
            return "sequences";
        case SplitBy::groups:
            return "groups";
        case SplitBy::same:
            return "same";
    }
    return {};
}

double Split::imbalance() const {
    const std::uint64_t all = std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
    if (all == 0) return 1;
    return static_cast<double>(std::ranges::max(tokens)) * static_cast<double>(tokens.size()) /
           static_cast<double>(all);
}

Result<Split> split(const Sequences& batch, SplitBy by, std::uint32_t parts) {
    if (name(by).empty() || parts == 0 || parts > parts_most) {
        return refused(
            Errc::invalid_argument,
            fmt::format("a batch can be split over 1 to {} ranks, not {}", parts_most, parts));
    }
    Split made;
    made.parts.resize(parts);
    made.tokens.resize(parts);
    const bool whole_groups = by == SplitBy::groups || by == SplitBy::group_tokens;
    const std::vector<Unit> units = units_of(batch, whole_groups);
    const auto give = [&](const Unit& unit, std::uint32_t part) {
        for (std::uint32_t i = unit.begin; i < unit.end; i++) made.parts[part].push_back(i);
        made.tokens[part] += unit.tokens;
    };
    if (by == SplitBy::same) {
        for (std::uint32_t part = 0; part < parts; part++) {
            for (const Unit& unit : units) give(unit, part);
        }
        return made;
    }
    const bool even = by == SplitBy::tokens || by == SplitBy::group_tokens;
    const std::vector<std::uint32_t> part_of =
        even ? balanced(units, parts) : in_runs(units, parts);
    for (std::size_t i = 0; i < units.size(); i++) give(units[i], part_of[i]);
    return made;
}

}  // namespace rollring
