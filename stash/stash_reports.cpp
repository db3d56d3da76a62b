// A stash's reports about itself: its counts and its ring and, for people, why no batch comes and
// why so many records were dropped.

#include <utility>

#include "stash_impl.hpp"

namespace rollring {

StashAccount Stash::account() const {
    return impl_->groups.account();
}
StashCopies Stash::copies() const {
    const ReaderControl& control = impl_->core.control();
    return {peek(control.copied_bytes) - impl_->copied_before,
            peek(control.evacuated_records) - impl_->evacuated_before, impl_->batches_short};
}
std::size_t Stash::open_groups() const {
    return impl_->groups.open_groups();
}
bool Stash::no_progress() const {
    return impl_->groups.no_progress(monotonic_ns());
}

const Schema& Stash::schema() const {
    return impl_->core.map().schema();
}
std::int64_t Stash::last_acked_step() const {
    return impl_->core.last_acked_step();
}
std::int64_t Stash::policy_version() const {
    return impl_->core.policy_version();
}
std::uint32_t Stash::producers_active() const {
    return impl_->core.roster().producers();
}
std::uint64_t Stash::journal_records() const {
    return impl_->core.journal().entries_max();
}
ConsumerStats Stash::stats() const {
    return impl_->core.stats();
}

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
    std::string text = impl_->notices.waits_for(monotonic_ns());
    if (impl_->ledger == nullptr || !impl_->core.usable()) return text;
    const std::string ledger = impl_->ledger->waits_for();
    if (ledger.empty()) return text;
    return text.empty() ? ledger : ledger + "; " + text;
}

void Stash::tell_all() {
    impl_->notices.tell_all(monotonic_ns());
}

std::string Stash::dropped_since_batch() const {
    return impl_->notices.since_batch();
}

}  // namespace rollring
