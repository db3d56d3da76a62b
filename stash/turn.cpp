#include "turn.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "fault_point.hpp"

namespace rollring {

Stash::Impl::Turn::~Turn() {
    show_groups();
    if (kind_ == Kind::reads) show_admitted();
    release_dropped();
    if (impl_->ledger != nullptr) impl_->ledger->end_turn();
    if (room_changed_) impl_->shown.show_account(*room_changed_);
}

void Stash::Impl::Turn::show_groups() {
    impl_->shown.show_touched(now_ns_, has_tombstones_);
}

void Stash::Impl::Turn::finish_changes() {
    show_groups();
    release_dropped();
}

// Once all records read are admitted: groups count as open, and their bytes as owed, before they
// stop counting as announced.
void Stash::Impl::Turn::show_admitted() {
    impl_->shown.show_open_groups();
    impl_->shown.show_room();
    impl_->core.roster().tell_claims();
}

// The records of a dropped group leave as one event: a successor must not find half of it. Its
// tombstone was written before (show_groups): after a kill between the two, the records are
// delivered again and dropped as late.
void Stash::Impl::Turn::release_dropped() {
    auto& dropped = groups().dropped();
    if (dropped.empty()) return;
    ConsumerCore& consumer = impl_->core;
    Slab<Record>& slab = impl_->records;
    for (const Dropped& one : dropped) {
        impl_->notices.dropped(slab[one.record], one.reason);
        if (impl_->ledger != nullptr) impl_->ledger->dropped(slab[one.record]);
    }
    impl_->notices.tell_new();
    FAULT_POINT("drop.before");
    if (dropped.size() == 1) {
        consumer.release(slab[dropped.front().record].ref);
    } else {
        std::vector<RecordRef> refs;
        refs.reserve(dropped.size());
        for (const Dropped& one : dropped) refs.push_back(slab[one.record].ref);
        const std::span<const RecordRef> all(refs);
        const std::uint64_t most = consumer.journal().entries_max();
        for (std::size_t at = 0; at < all.size(); at += most) {
            static_cast<void>(consumer.release_all(
                all.subspan(at, std::min<std::uint64_t>(most, all.size() - at)), -1, true));
        }
    }
    FAULT_POINT("drop.after");
    for (const Dropped& one : dropped) {
        const Record& record = slab[one.record];
        impl_->repeats.dropped({record.producer_lane, record.producer_epoch}, one.reason);
        slab.give_back(one.record);
    }
    dropped.clear();
}

}  // namespace rollring
