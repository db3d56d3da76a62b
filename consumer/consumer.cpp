// The plain consumer. It alone keeps account of the records that it has delivered.

#include "rollring/consumer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "consumer_core.hpp"
#include "group_places.hpp"
#include "handed.hpp"
#include "rollring/relay.hpp"

namespace rollring {

std::string_view name(Poll answer) {
    switch (answer) {
        case Poll::record:
            return "record";
        case Poll::empty:
            return "empty";
        case Poll::timed_out:
            return "timed_out";
        case Poll::closed:
            return "closed";
    }
    return "unknown";
}

struct Consumer::Impl {
    ConsumerCore core;
    InHand in_hand;
    std::optional<std::uint64_t> places;  // none: producers open groups without asking
    std::uint64_t looks_seen = 0;
    std::uint64_t strays = 0;

    Impl(ReaderSeat seat, const ConsumerOptions& options)
        : core(std::move(seat), options, ConsumerCore::Arrive::when_read), in_hand(core.roster()) {}

    Poll poll(Record& record);
    void show_bound();
    // The highest bound at which producers take places one by one.
    [[nodiscard]] std::uint64_t bound_most() const {
        return places_one_by_one(core.map().geometry().lane_count);
    }
    void note_released(std::uint32_t lane) {
        if (places) core.roster().feed(lane).tell_released_claims();
    }
};

// Without places no process counts groups here, and producers open groups without asking. A stash
// that was killed may have left its bound behind, and other processes may overwrite this one.
void Consumer::Impl::show_bound() {
    const bool first = looks_seen == 0;
    looks_seen = core.roster().looks() + 1;
    ReaderControl& control = core.control();
    // Counts so many groups as open that just the places are left. The bound is the highest one,
    // because a lane that announces more groups than the bound counts as damaged.
    const std::uint64_t bound = places ? bound_most() : 0;
    // Without places the count stays as a trainer left it: the next trainer starts with it, until
    // it has read all records of its predecessor.
    const std::uint64_t open =
        places ? bound - std::min(*places, bound - 1) : peek(control.open_groups);
    if (!first && peek(control.max_open_groups) == bound && peek(control.open_groups) == open) {
        return;
    }
    store_release(control.open_groups, open);
    store_release(control.max_open_groups, bound);
    core.roster().ring_all();
}

Poll Consumer::Impl::poll(Record& record) {
    if (looks_seen != core.roster().looks() + 1 && core.usable()) show_bound();
    const Poll got = core.poll(record);
    if (got == Poll::record) in_hand.add(record.ref);
    return got;
}

Result<Consumer> Consumer::open(std::string_view ring, const ConsumerOptions& options) {
    auto seat = ReaderSeat::take(ring, options.purpose, Deadline::after(options.attach_timeout));
    if (!seat) return std::unexpected(seat.error());
    if (const LedgerPlan& ledger = seat->map().segment().ledger(); !ledger.directory.empty()) {
        return refused(Errc::invalid_argument,
                       fmt::format("ring {} has a ledger in {}, which only a stash writes: open a "
                                   "Stash, or create the ring without a ledger",
                                   ring, ledger.directory));
    }
    auto impl = std::make_unique<Impl>(std::move(*seat), options);
    if (auto started = impl->core.start(); !started) return std::unexpected(started.error());
    return Consumer(std::move(impl));
}

Consumer::Consumer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer& Consumer::operator=(Consumer&&) noexcept = default;
Consumer::~Consumer() = default;

Poll Consumer::poll(Record& record) {
    return impl_->poll(record);
}

Poll Consumer::wait(Record& record, Deadline deadline) {
    const Poll got = impl_->core.wait(deadline, [&] { return impl_->poll(record); });
    if (got == Poll::timed_out) static_cast<void>(impl_->core.take_interrupt());
    return got;
}

void RelayConsumer::bound_groups(Consumer& consumer, std::uint64_t places) {
    Consumer::Impl& impl = *consumer.impl_;
    if (!impl.core.usable()) return;
    impl.core.tell_claims_with_release();
    impl.places = places;
    impl.show_bound();
}

std::uint64_t RelayConsumer::announced_groups(const Consumer& consumer) {
    const Consumer::Impl& impl = *consumer.impl_;
    const RingMap& map = impl.core.map();
    std::uint64_t groups = 0;
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        groups += rollring::announced_groups(map, lane, impl.bound_most());
    }
    return groups;
}

void Consumer::interrupt() {
    impl_->core.interrupt();
}

bool Consumer::view(const RecordRef& record, TrajectoryView& view) const {
    view = TrajectoryView();
    if (!impl_->core.usable()) return false;
    if (!impl_->in_hand.holds(record)) return false;
    return impl_->core.view(record, view);
}

bool Consumer::release(const RecordRef& record) {
    if (!impl_->core.usable()) return false;
    if (!impl_->in_hand.take(record)) {
        impl_->strays++;
        return false;
    }
    impl_->core.release(record);
    impl_->note_released(record.lane);
    impl_->core.roster().ring_openers();
    return true;
}

Result<void> Consumer::release_all(std::span<const RecordRef> records, std::int64_t step) {
    if (auto usable = impl_->core.check_usable(); !usable) return usable;
    if (step != -1) {
        if (auto checked = impl_->core.check_step(step); !checked) return checked;
    }
    std::size_t taken = 0;
    while (taken < records.size() && impl_->in_hand.take(records[taken])) taken++;
    const auto put_back = [&] {
        for (const RecordRef& one : records.first(taken)) impl_->in_hand.put_back(one);
    };
    if (taken < records.size()) {
        const RecordRef& stray = records[taken];
        put_back();
        return refused(
            Errc::not_leased,
            fmt::format("record {} of {} (lane {}, position {}, {} lines) is not held: it was "
                        "already released, is listed twice, or was never delivered",
                        taken, records.size(), stray.lane, stray.position, stray.lines));
    }
    auto released = impl_->core.release_all(records, step, true);
    if (!released) put_back();
    for (const RecordRef& one : records) impl_->note_released(one.lane);
    impl_->core.roster().ring_openers();
    return released;
}

std::uint64_t Consumer::journal_records() const {
    return impl_->core.journal().entries_max();
}
std::int64_t Consumer::last_acked_step() const {
    return impl_->core.last_acked_step();
}
std::int64_t Consumer::policy_version() const {
    return impl_->core.policy_version();
}
const Schema& Consumer::schema() const {
    return impl_->core.map().schema();
}

std::string Consumer::problem() const {
    return impl_->core.problem();
}

bool Consumer::next_event(Event& event) {
    return impl_->core.usable() && impl_->core.roster().events().pop(event);
}

std::uint32_t Consumer::producers_active() const {
    return impl_->core.roster().producers();
}

ConsumerStats Consumer::stats() const {
    ConsumerStats stats = impl_->core.stats();
    stats.strays = impl_->strays;
    return stats;
}

}  // namespace rollring
