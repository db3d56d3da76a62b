// The cost of one record in the machine that forms groups, without a ring or records to read:
// groups are filled in a scattered order, the worst case. For people and for the figures: prints a
// JSON object a line.
//
//   machine_rate [SECONDS [OPEN_GROUPS ...]]

#include <fmt/core.h>

#include <string>
#include <vector>

#include "group_stash.hpp"
#include "rollring/time.hpp"

namespace {

constexpr std::uint32_t group_size = 8;

// ns that one record costs while so many groups are open.
double machine_ns(std::uint64_t open_groups, double seconds) {
    rollring::GroupStash stash({.group_size = group_size,
                                .order = rollring::Order::freshest,
                                .batch = rollring::BatchTarget::groups(32),
                                .advanced = {.tombstones = 1 << 20}});
    rollring::BatchPlan plan;
    // Group g gets its members one window apart: the groups are at eight different stages, and come
    // in a scattered order.
    const auto arrival_at = [open_groups](std::uint64_t i) {
        const std::uint64_t group =
            i / (open_groups * group_size) * open_groups + i * 0x9e3779b1 % open_groups;
        rollring::Arrival arrival;
        arrival.record = static_cast<std::uint32_t>(i);
        arrival.key = {group * 0x9e3779b97f4a7c15, group};
        arrival.repetition_id = static_cast<std::uint32_t>(i / open_groups % group_size);
        arrival.n_tokens = 64;
        arrival.reward = static_cast<double>(arrival.repetition_id);
        return arrival;
    };
    constexpr std::uint64_t at_once = 16;
    const std::uint64_t warmup = open_groups * group_size * 2;
    std::int64_t began_ns = 0;
    for (std::uint64_t i = 0;; i += at_once) {
        if (began_ns == 0 && i >= warmup) began_ns = rollring::monotonic_ns() - 1;
        if (began_ns != 0 && i % 4096 == 0) {
            const double taken = static_cast<double>(rollring::monotonic_ns() - began_ns);
            if (taken > seconds * 1e9) return taken / static_cast<double>(i - warmup);
        }
        const auto time_ns = static_cast<std::int64_t>(i) * 100;
        for (std::uint64_t k = 0; k < at_once; k++) stash.admit(arrival_at(i + k), time_ns, -1);
        stash.touched().clear();
        stash.dropped().clear();
        while (stash.may_cut() && stash.cut(time_ns, -1, plan)) stash.ack(plan.id, time_ns);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const double seconds = words.empty() ? 0.3 : std::stod(words[0]);
    std::vector<std::uint64_t> counts{100, 1'000, 10'000, 100'000};
    if (words.size() > 1) counts.clear();
    for (std::size_t i = 1; i < words.size(); i++) counts.push_back(std::stoull(words[i]));
    for (const std::uint64_t groups : counts) {
        fmt::print("{{\"open_groups\": {}, \"ns_per_record\": {:.1f}}}\n", groups,
                   machine_ns(groups, seconds));
    }
}
