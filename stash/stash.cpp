#include "rollring/stash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fault_point.hpp"
#include "receipt.hpp"
#include "stash_impl.hpp"

namespace rollring {
namespace {

constexpr int records_per_turn = 64;  // between looks at the clock
constexpr int turns_late_max = 64;    // after the deadline, if records keep coming
constexpr std::int64_t tick_every_ns = 10'000'000;
constexpr std::int64_t blocked_patience_ns = 1'000'000'000;

Arrival arrival_of(const Record& record, std::uint32_t number) {
    const Meta& meta = record.view.meta();
    Arrival arrival;
    arrival.record = number;
    arrival.producer_lane = record.producer_lane;
    arrival.producer_epoch = record.producer_epoch;
    arrival.key = record.view.group_key();
    arrival.repetition_id = meta.repetition_id.value_or(0);
    arrival.numbered = meta.repetition_id.has_value();
    arrival.group_size = meta.group_size;
    arrival.subsequence_index = meta.subsequence_index;
    arrival.last_subsequence = meta.last_subsequence;
    arrival.attempt = meta.attempt;
    arrival.status = meta.status;
    arrival.n_tokens = record.view.n_tokens();
    arrival.policy_version_min = meta.policy_version_min;
    arrival.reward = meta.reward;
    arrival.source_id = meta.source_id.value_or(0);
    if (record.redelivered) arrival.sent_ns = record.committed_ns;
    return arrival;
}

}  // namespace

Stash::Impl::Impl(ReaderSeat seat, const StashOptions& given,
                  const ConsumerOptions& consumer_options)
    : core(std::move(seat), consumer_options, ConsumerCore::Arrive::when_told),
      options(given),
      groups(given, core.journal().entries_max()),
      room(core.map(), core.control()),
      evacuation(core, records, groups, room),
      shown(core, records, groups, room, evacuation, given.max_open_bytes),
      standstill(core, groups, room, evacuation, shown, events, given.count_leased),
      notices(core, groups, shown, options, events),
      lanes(core.map(), core.seat().all()),
      leases(records, lanes, {given.advantages, given.deviation, given.deviation_epsilon}),
      shares(core.map(),
             core.seat().reader_pages().at<SharePage>(core.map().geometry().shares_offset() -
                                                      core.map().geometry().reader_offset())),
      backlog(core) {}

Stash::Impl::~Impl() {
    close();
}

// The bounds stay for producers until the next trainer comes, or a plain consumer, who lifts them.
void Stash::Impl::close() {
    leases.end_all(core.usable());
    if (core.usable()) core.seat().give_back();
}

Result<void> Stash::Impl::start() {
    if (auto recovered = core.start(); !recovered) return recovered;
    ReaderControl& control = core.control();
    // The spill last, as it is written from then on; its memory first, so that a stash that cannot
    // open keeps none of it.
    Overflow* const overflow = core.seat().overflow();
    if (auto reserved = Spill::reserve_first(core.map(), control, overflow); !reserved) {
        return reserved;
    }
    if (overflow != nullptr && !overflow->usable()) {
        events.push({Event::Kind::overflow_failed,
                     core.map().geometry().spill_lane(),
                     0,
                     {},
                     0,
                     overflow->problem()});
    }
    if (auto opened = shown.open(); !opened) {
        Spill::give_back(core.map());
        return opened;
    }
    if (auto opened = evacuation.open(); !opened) {
        Spill::give_back(core.map());
        return opened;
    }
    for (const KnownTombstone& tombstone : shown.tombstones())
        groups.note_over(tombstone.key, tombstone.over_ns);
    const std::uint64_t rows = shown.rows();
    const std::uint64_t max_open_groups =
        options.max_open_groups != 0 ? std::min<std::uint64_t>(options.max_open_groups, rows)
                                     : core.map().geometry().open_groups_most();
    const std::uint64_t batch_groups = options.batch.of(BatchTarget::Unit::groups);
    if (batch_groups > max_open_groups) {
        return refused(
            Errc::invalid_argument,
            fmt::format("batch is {} groups, but only {} groups may be open at once: raise "
                        "--max-open-groups or create the ring with more --group-rows",
                        batch_groups, max_open_groups));
    }
    if (options.group_size > core.journal().entries_max()) {
        return refused(
            Errc::invalid_argument,
            fmt::format("group_size is {}, but the ring's journal holds {} records in one "
                        "acknowledgement: create the ring with a larger --journal-records",
                        options.group_size, core.journal().entries_max()));
    }
    copied_before = peek(control.copied_bytes);
    evacuated_before = peek(control.evacuated_records);
    shares.open();
    room.start(options);
    shown.start(max_open_groups, !options.count_leased);
    return {};
}

Stash::Stash(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stash::~Stash() {
    impl_->close();
}

Result<std::unique_ptr<Stash>> Stash::open(std::string_view ring, const StashOptions& options,
                                           const ConsumerOptions& consumer_options) {
    if (auto valid = validate(options); !valid) return std::unexpected(valid.error());
    auto seat = ReaderSeat::take(ring, Deadline::after(consumer_options.attach_timeout));
    if (!seat) return std::unexpected(seat.error());
    auto impl = std::make_shared<Impl>(std::move(*seat), options, consumer_options);
    if (auto started = impl->start(); !started) return std::unexpected(started.error());
    return std::unique_ptr<Stash>(new Stash(std::move(impl)));
}

void Stash::Impl::admit(std::uint32_t number, std::int64_t now_ns) {
    const Record& record = records[number];
    const Arrival arrival = arrival_of(record, number);
    room.saw(record.ref.lines);
    spill_read |= record.ref.lane != core.map().geometry().spill_lane();
    // Its producer may have gone in a predecessor's time, and will not be announced again.
    if (record.redelivered) orphans.emplace(arrival.producer_lane, arrival.producer_epoch);
    const auto index = groups.admit(arrival, now_ns, core.policy_version());
    if (index == GroupStash::no_group) return;
    room.saw_member(index, record.ref.lines, arrival.producer_lane);
    const Group& group = groups.group(index);
    if (arrival.group_size != 0 && arrival.group_size != group.size &&
        group.state != GroupState::leased && group.state != GroupState::free) {
        notices.size_conflict(record, group);
    }
    if (group.state == GroupState::free) {
        // Another group may take the index, and its end must have been shown by then.
        finish_changes(now_ns);
    } else if (group.total.records == 0) {
        // Nothing of it is left to name it later.
        shown.show_touched(now_ns);
        shown.name(index, record.view.instance_id());
    }
}

// After all that has been read was admitted: groups count as open, and their bytes as owed, before
// they cease to be announced.
void Stash::Impl::show_admitted(std::int64_t now_ns) {
    shown.show_touched(now_ns);
    shown.show_open_groups();
    shown.show_room();
    core.roster().tell_claims();
    release_dropped();
}

// In this order: the tombstones of dropped groups are written before their records leave.
void Stash::Impl::finish_changes(std::int64_t now_ns) {
    shown.show_touched(now_ns);
    release_dropped();
}

// The records of a dropped group leave as one event: a successor must not find half of it. Its
// tombstone was written before (show_touched): if we are killed between the two, the records come
// once more, and late.
void Stash::Impl::release_dropped() {
    auto& dropped = groups.dropped();
    if (dropped.empty()) return;
    for (const Dropped& one : dropped) notices.dropped(records[one.record], one.reason);
    notices.tell_new();
    FAULT_POINT("drop.before");
    if (dropped.size() == 1) {
        core.release(records[dropped.front().record].ref);
    } else {
        std::vector<RecordRef> refs;
        refs.reserve(dropped.size());
        for (const Dropped& one : dropped) refs.push_back(records[one.record].ref);
        const std::span<const RecordRef> all(refs);
        const std::uint64_t most = core.journal().entries_max();
        for (std::size_t at = 0; at < all.size(); at += most) {
            static_cast<void>(core.release_all(
                all.subspan(at, std::min<std::uint64_t>(most, all.size() - at)), -1, true));
        }
    }
    FAULT_POINT("drop.after");
    for (const Dropped& one : dropped) {
        const Record& record = records[one.record];
        repeats.dropped({record.producer_lane, record.producer_epoch}, one.reason);
        records.give_back(one.record);
    }
    dropped.clear();
}

bool Stash::Impl::tick(std::int64_t now_ns) {
    if (now_ns - ticked_ns < tick_every_ns) return false;
    ticked_ns = now_ns;
    shown.show_bounds();
    hear_events(now_ns);
    keep_deadlines(now_ns);
    finish_changes(now_ns);
    notices.tell(now_ns);
    return true;
}

// A group that is due is decided once all has been read that had been sent by then: what completes
// it may lie in a lane, unread while we trained or while there was no trainer.
void Stash::Impl::keep_deadlines(std::int64_t now_ns) {
    if (noted_ns != 0) {
        // A blocked lane may wait for the very groups that are due.
        const bool patient = now_ns - noted_ns < blocked_patience_ns;
        if (!core.roster().noted_was_read(patient)) return;
        groups.tick(noted_ns);
        for (const auto index : groups.deadlines().partial()) notices.partial(index, now_ns);
        groups.deadlines().partial().clear();
    }
    noted_ns = now_ns;
    core.roster().note_tails();
}

// A producer's end is told after its last record: what it has begun will not be finished.
void Stash::Impl::hear_events(std::int64_t now_ns) {
    Event event;
    while (core.roster().events().pop(event)) {
        if (event.kind == Event::Kind::producer_died ||
            event.kind == Event::Kind::producer_closed) {
            groups.producer_gone(event.lane, event.epoch, now_ns);
            repeats.ended({event.lane, event.epoch}, event.producer, event.records);
        }
        events.push(std::move(event));
    }
}

// Producers of redelivered records whose end a predecessor was told of. Called when all that they
// left has been read.
void Stash::Impl::fail_orphans(std::int64_t now_ns) {
    for (const auto& [lane, epoch] : orphans) {
        if (lane >= core.map().geometry().lane_count) continue;
        const bool here = observe(core.map().owner(lane).epoch) == epoch &&
                          observe(core.map().entry(lane).retired_epoch) != epoch;
        if (!here) groups.producer_gone(lane, epoch, now_ns);
    }
    orphans.clear();
}

Result<std::uint64_t> Stash::Impl::settle(std::string_view receipt, std::int64_t step) {
    if (auto usable = core.check_usable(); !usable) return std::unexpected(usable.error());
    if (polled) {
        return refused(Errc::invalid_argument,
                       "settle receipts before the first next_batch(): their records may be in "
                       "another batch by now");
    }
    auto entries = read_receipt(receipt, core.map().ring_id());
    if (!entries) return std::unexpected(entries.error());
    const std::vector<RecordRef> found = find_unreleased(*entries, core.roster());
    if (found.empty()) return std::uint64_t{0};
    // One that was leased later may have been acknowledged before.
    if (step >= 0) step = std::max(step, core.last_acked_step());
    if (auto checked = core.check_step(step); !checked) return std::unexpected(checked.error());
    // Their groups are over, as after ack().
    const std::int64_t now = monotonic_ns();
    std::vector<GroupKey> keys;
    for (const RecordRef& one : found) {
        TrajectoryView view;
        if (!core.view(one, view)) continue;
        const GroupKey key = view.group_key();
        if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
    shown.prepare_tombstones(keys, now);
    auto released = core.release_all(found, step, false);
    if (!released) return std::unexpected(released.error());
    for (const GroupKey& key : keys) groups.note_over(key, now);
    shown.show_account(true);
    return found.size();
}

// Reads for a while, and no more than makes a batch possible. Poll::empty if nothing came.
Poll Stash::Impl::turn(std::int64_t now_ns) {
    polled = true;
    Poll got = Poll::record;
    bool came_any = false;
    int left = records_per_turn;
    do {
        const std::uint32_t number = records.take();
        got = core.poll(records[number]);
        if (got != Poll::record) {
            records.give_back(number);
            break;
        }
        came_any = true;
        admit(number, now_ns);
        shown.show_open_groups();  // a lane that has ended announces nothing any more
    } while (--left > 0 && !(groups.may_cut() && backlog.was_read()));
    if (came_any) standstill.note_came(now_ns);
    show_admitted(now_ns);
    if (got == Poll::empty) {
        spill_read = true;
        shown.note_caught_up();
        fail_orphans(now_ns);
        finish_changes(now_ns);
    }
    return got == Poll::empty && came_any ? Poll::record : got;
}

NextBatch Stash::next_batch(Batch& batch, Deadline deadline) {
    batch.nack();
    Impl& impl = *impl_;
    if (!impl.core.usable()) return NextBatch::closed;
    bool blocked = false;
    bool looked = false;  // who waits, since all was read; also by a call that may not wait
    bool changed = true;  // since the room was shown
    int turns_late = 0;
    // One that an earlier call did not get through is read first: calls that may not wait get on.
    if (impl.options.order == Order::freshest && impl.backlog.was_read()) impl.backlog.note();
    for (;;) {
        const std::int64_t now = monotonic_ns();
        changed |= impl.tick(now);
        // The rest of the spill may hold a later attempt of what would be shipped.
        bool cut = impl.spill_read && impl.backlog.was_read() &&
                   impl.groups.cut(now, impl.core.policy_version(), impl.plan);
        // Also before the trainer goes to work: nothing is moved while it does.
        const bool relieved = impl.evacuation.make_room(blocked || cut, now);
        if (relieved) impl.standstill.note_moved(now);
        looked = !cut && !relieved && blocked;
        if (looked) {
            const auto waits = impl.standstill.who_waits();
            if (impl.standstill.stuck(waits, now)) {
                cut = impl.groups.cut_rest(now, impl.core.policy_version(), impl.plan);
                impl.batches_short += cut ? 1 : 0;
            } else {
                impl.standstill.let_go(waits, now);
            }
        }
        impl.finish_changes(now);
        impl.shown.show_account(changed || relieved || cut);
        changed = false;
        if (cut) {
            impl.standstill.note_cut();
            FAULT_POINT("cut.before_lease");
            impl.leases.lease(batch, impl.plan, impl_);
            impl.shown.show_batch(impl.leases.latest());
            impl.notices.note_batch();
            FAULT_POINT("cut.after_lease");
            return NextBatch::batch;
        }
        const Poll got = impl.turn(now);
        if (got == Poll::closed) return NextBatch::closed;
        blocked = got == Poll::empty;
        changed |= blocked;
        if (impl.core.take_interrupt()) return NextBatch::timed_out;
        const bool late = monotonic_ns() >= deadline.at_ns;
        if (!blocked && late && ++turns_late == turns_late_max) return NextBatch::timed_out;
        if (!blocked) continue;
        if (impl.evacuation.make_room(true,
                                      now)) {  // at once: producers that wait for room cannot ring
            impl.standstill.note_moved(now);
            changed = true;
            blocked = false;
            continue;
        }
        if (late && looked) return NextBatch::timed_out;
        if (late) continue;
        const std::int64_t until = std::min(
            deadline.at_ns, now + (impl.standstill.all_wait() ? 1'000'000 : tick_every_ns * 5));
        const std::uint32_t number = impl.records.take();
        const Poll woken = impl.core.wait(impl.records[number], Deadline{until});
        if (woken == Poll::record) {
            blocked = false;
            const std::int64_t then = monotonic_ns();
            impl.admit(number, then);
            impl.standstill.note_came(then);
            impl.show_admitted(then);
        } else {
            impl.records.give_back(number);
        }
        if (woken == Poll::closed) return NextBatch::closed;
    }
}

void Stash::interrupt() {
    impl_->core.interrupt();
}

NextBatch Stash::rest(Batch& batch) {
    // Also where it says closed: what was read before the ring was removed is still to come.
    if (next_batch(batch, Deadline::now()) == NextBatch::batch) return NextBatch::batch;
    if (!impl_->core.usable()) return NextBatch::closed;
    const std::int64_t now = monotonic_ns();
    const bool cut =
        impl_->spill_read && impl_->groups.cut_rest(now, impl_->core.policy_version(), impl_->plan);
    impl_->finish_changes(now);
    impl_->shown.show_account(true);
    if (!cut) return NextBatch::timed_out;
    impl_->leases.lease(batch, impl_->plan, impl_);
    impl_->shown.show_batch(impl_->leases.latest());
    impl_->notices.note_batch();
    return NextBatch::batch;
}

Result<std::uint64_t> Stash::settle(std::string_view receipt, std::int64_t step) {
    return impl_->settle(receipt, step);
}

std::string Stash::problem() const {
    return impl_->core.problem();
}

bool Stash::next_event(Event& event) {
    return impl_->core.usable() && impl_->events.pop(event);
}

}  // namespace rollring
