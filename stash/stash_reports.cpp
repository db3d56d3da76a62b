// What a stash tells people who ask why nothing comes, or why so much was dropped.

#include <utility>

#include "stash_impl.hpp"

namespace rollring {

std::vector<RepeatedKeys> Stash::repeated_keys() const {
    std::vector<RepeatedKeys> found;
    const auto& feeds = impl_->core.roster().feeds();
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

std::vector<GroupStat> Stash::explain(std::size_t count) const {
    return impl_->shown.oldest_open(count, monotonic_ns());
}

std::string Stash::waits_for() const {
    return impl_->notices.waits_for(monotonic_ns());
}

void Stash::tell_all() {
    impl_->notices.tell_all(monotonic_ns());
}

std::string Stash::dropped_since_batch() const {
    return impl_->notices.since_batch();
}

}  // namespace rollring
