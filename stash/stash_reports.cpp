// What a stash tells people who ask why nothing comes, or why so much was dropped.

#include <fmt/format.h>

#include <utility>

#include "stash_impl.hpp"

namespace rollring {

std::vector<RepeatedKeys> Stash::repeated_keys() const {
    std::vector<RepeatedKeys> found;
    const auto& feeds = impl_->ring().feeds;
    for (const auto& [producer, counts] : impl_->repeats.counts()) {
        const auto& [lane, epoch] = producer;
        std::uint64_t records = counts.records;
        std::string who = counts.name;
        if (records == 0) {  // it has not ended
            if (lane >= feeds.size() || !feeds[lane] || feeds[lane]->epoch() != epoch) continue;
            const Event now = feeds[lane]->event(Event::Kind::producer_joined);
            records = now.records;
            who = now.producer;
        }
        if (!counts.suspect(records)) continue;
        found.push_back({std::move(who), lane, epoch, records, counts.duplicate, counts.late});
    }
    return found;
}

std::vector<GroupReport> Stash::explain(std::size_t count) const {
    std::vector<GroupReport> reports;
    for (WaitingGroup& group : impl_->groups.explain(monotonic_ns(), count)) {
        GroupReport& report = reports.emplace_back();
        report.key = group.key;
        report.age_ns = group.age_ns;
        report.size = group.size;
        report.live = group.live;
        report.failed = group.failed;
        report.missing = std::move(group.missing);
        if (group.tag) report.instance_id = impl_->held[*group.tag].view.instance_id();
        for (const std::uint32_t lane : group.lanes) {
            report.producers.push_back(
                fmt::format("{} (lane {})", load_name(impl_->ring().map.owner(lane)), lane));
        }
    }
    return reports;
}

}  // namespace rollring
