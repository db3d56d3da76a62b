#include "group_machine.hpp"

#include <array>

#include "bench.hpp"
#include "group_stash.hpp"

namespace bench {

double machine_ns(std::uint64_t open_groups, double seconds) {
    rollring::GroupStash stash({.group_size = machine_group_size,
                                .order = rollring::Order::freshest,
                                .batch_groups = machine_batch_groups,
                                .tombstones = 1 << 20});
    rollring::BatchPlan plan;
    // Group g gets its members one window apart: the groups are at eight different stages, and come
    // in a scattered order.
    const auto arrival_at = [open_groups](std::uint64_t i) {
        const std::uint64_t group =
            i / (open_groups * machine_group_size) * open_groups + i * 0x9e3779b1 % open_groups;
        rollring::Arrival arrival;
        arrival.tag = static_cast<std::uint32_t>(i);
        arrival.key = {group * 0x9e3779b97f4a7c15, group};
        arrival.repetition_id = static_cast<std::uint32_t>(i / open_groups % machine_group_size);
        arrival.n_tokens = 64;
        arrival.reward = static_cast<double>(arrival.repetition_id);
        return arrival;
    };
    constexpr std::uint64_t at_once = 16;  // as Stash does it
    std::array<rollring::Arrival, at_once> arrivals;
    std::array<rollring::GroupStash::Slot, at_once> slots{};
    const std::uint64_t warmup = open_groups * machine_group_size * 2;
    std::int64_t began_ns = 0;
    for (std::uint64_t i = 0;; i += at_once) {
        if (began_ns == 0 && i >= warmup) began_ns = now_ns() - 1;
        if (began_ns != 0 && i % 4096 == 0) {
            const double taken = static_cast<double>(now_ns() - began_ns);
            if (taken > seconds * 1e9) return taken / static_cast<double>(i - warmup);
        }
        const auto time_ns = static_cast<std::int64_t>(i) * 100;
        for (std::uint64_t k = 0; k < at_once; k++) {
            arrivals[k] = arrival_at(i + k);
            stash.prefetch_index(arrivals[k].key);
        }
        for (std::uint64_t k = 0; k < at_once; k++) {
            slots[k] = stash.prefetch_group(arrivals[k].key);
        }
        for (const auto slot : slots) stash.prefetch_member(slot);
        for (std::uint64_t k = 0; k < at_once; k++) {
            stash.admit(arrivals[k], time_ns, -1, slots[k]);
        }
        stash.touched().clear();
        stash.dropped().clear();
        while (stash.may_cut() && stash.cut(time_ns, -1, plan)) stash.ack(plan.id, time_ns);
    }
}

}  // namespace bench
