#include "rollring/stash.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fault_point.hpp"
#include "stash_impl.hpp"
#include "turn.hpp"

namespace rollring {
namespace {

constexpr int records_per_turn = 64;  // between checks of the clock
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
      machine_(given, core.journal().entries_max()),
      room(core.map(), core.control()),
      evacuation(core, records, groups, room),
      shown(core, records, machine_, room, evacuation, given.advanced.max_open_bytes),
      standstill(core, groups, room, evacuation, shown, events, given.advanced.count_leased),
      notices(core, machine_, shown, options, events),
      lanes(core.map(), core.seat().all()),
      leases(records, lanes,
             {given.advantages, given.advanced.deviation, given.advanced.deviation_epsilon}),
      shares(core.map(),
             core.seat().reader_pages().at<SharePage>(core.map().geometry().shares_offset() -
                                                      core.map().geometry().reader_offset())),
      backlog(core) {}

Stash::Impl::~Impl() {
    close();
}

// The bounds stay in force until the next trainer comes, or a plain consumer, which lifts them.
void Stash::Impl::close() {
    leases.end_all(core.usable());
    // It shows its progress in the pages of the seat. A forked child leaves it as it is: its thread
    // is not there.
    if (!core.usable()) static_cast<void>(ledger.release());
    ledger.reset();
    if (core.usable()) core.seat().give_back();
}

Result<void> Stash::Impl::start() {
    if (auto recovered = core.start(); !recovered) return recovered;
    ReaderControl& control = core.control();
    // The spill comes last, because it is written from then on; its memory comes first, so that a
    // stash that cannot open keeps none of it.
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
        machine_.note_over(tombstone.key, tombstone.over_ns);
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
    room.start(options.group_size, options.extra);
    shown.start(max_open_groups, !options.advanced.count_leased);
    return {};
}

Stash::Stash(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stash::~Stash() {
    impl_->close();
}

Result<std::unique_ptr<Stash>> Stash::open(std::string_view ring, const StashOptions& options,
                                           const ConsumerOptions& consumer_options) {
    if (auto valid = validate(options); !valid) return std::unexpected(valid.error());
    auto seat = ReaderSeat::take(ring, consumer_options.purpose,
                                 Deadline::after(consumer_options.attach_timeout));
    if (!seat) return std::unexpected(seat.error());
    auto impl = std::make_shared<Impl>(std::move(*seat), options, consumer_options);
    if (auto started = impl->start(); !started) return std::unexpected(started.error());
    if (auto opened = impl->open_ledger(ring); !opened) return std::unexpected(opened.error());
    return std::unique_ptr<Stash>(new Stash(std::move(impl)));
}

void Stash::Impl::admit(Turn& turn, std::uint32_t number) {
    const Record& record = records[number];
    const Arrival arrival = arrival_of(record, number);
    room.saw(record.ref.lines);
    spill_read |= record.ref.lane != core.map().geometry().spill_lane();
    if (ledger != nullptr && !ledger->read(record)) {
        core.release(record.ref);
        records.give_back(number);
        return;
    }
    // Its producer may have ended under a predecessor, and will not be reported again.
    if (record.redelivered) orphans.emplace(arrival.producer_lane, arrival.producer_epoch);
    const auto index = turn.groups().admit(arrival, turn.now_ns(), core.policy_version());
    if (index == GroupStash::no_group) return;
    room.saw_member(index, record.ref.lines, arrival.producer_lane);
    const Group& group = groups.group(index);
    if (arrival.group_size != 0 && arrival.group_size != group.size &&
        group.state != GroupState::leased && group.state != GroupState::free) {
        notices.size_conflict(record, group);
    }
    if (group.state == GroupState::free) {
        // Another group may take the index: this end must be shown before that.
        turn.finish_changes();
    } else if (group.total.records == 0) {
        // No record of it is left to take the name from later.
        turn.show_groups();
        shown.name(index, record.view.instance_id());
    }
}

bool Stash::Impl::tick(std::int64_t now_ns) {
    if (now_ns - ticked_ns < tick_every_ns) return false;
    ticked_ns = now_ns;
    shown.show_bounds();
    {
        Turn turn(*this, now_ns);
        hear_events(turn);
        keep_deadlines(turn);
    }
    notices.tell(now_ns);
    return true;
}

// A due group is decided once every record sent by then has been read: its missing members may lie
// in a lane, unread while the trainer trained or was down.
void Stash::Impl::keep_deadlines(Turn& turn) {
    if (noted_ns != 0) {
        // A blocked lane may wait for the very groups that are due.
        const bool patient = turn.now_ns() - noted_ns < blocked_patience_ns;
        if (!core.roster().noted_was_read(patient)) return;
        turn.groups().tick(noted_ns);
        auto& partial = turn.groups().deadlines().partial();
        for (const auto index : partial) notices.partial(index, turn.now_ns());
        partial.clear();
    }
    noted_ns = turn.now_ns();
    core.roster().note_tails();
}

// A producer's end is reported after its last record: members that it has begun will not be
// finished.
void Stash::Impl::hear_events(Turn& turn) {
    Event event;
    while (core.roster().events().pop(event)) {
        if (event.kind == Event::Kind::producer_died ||
            event.kind == Event::Kind::producer_closed) {
            turn.groups().producer_gone(event.lane, event.epoch, turn.now_ns());
            repeats.ended({event.lane, event.epoch}, event.producer, event.records);
        }
        events.push(std::move(event));
    }
}

// Producers of redelivered records whose end was reported to a predecessor. Called once all of
// their records have been read.
void Stash::Impl::fail_orphans(Turn& turn) {
    for (const auto& [lane, epoch] : orphans) {
        if (lane >= core.map().geometry().lane_count) continue;
        const bool here = observe(core.map().owner(lane).epoch) == epoch &&
                          observe(core.map().entry(lane).retired_epoch) != epoch;
        if (!here) turn.groups().producer_gone(lane, epoch, turn.now_ns());
    }
    orphans.clear();
}

Poll Stash::Impl::read(std::int64_t now_ns, Reads reads) {
    polled = true;
    Poll got = Poll::record;
    bool came_any = false;
    {
        Turn turn(*this, now_ns, Turn::Kind::reads);
        int left = records_per_turn;
        do {
            const std::uint32_t number = records.take();
            got = core.poll(records[number]);
            if (got != Poll::record) {
                records.give_back(number);
                break;
            }
            came_any = true;
            admit(turn, number);
            shown.show_open_groups();  // an ended lane no longer announces groups
        } while (--left > 0 && !has_whole_batch() && (ledger == nullptr || ledger->takes()) &&
                 !(reads == Reads::until_acked && ledger->ack_is_over()));
        if (came_any) standstill.note_came(now_ns);
    }
    if (got == Poll::empty) {
        Turn turn(*this, now_ns);
        spill_read = true;
        shown.note_caught_up();
        fail_orphans(turn);
    }
    return got == Poll::empty && came_any ? Poll::record : got;
}

// Sleeps until a record comes, and admits it.
Poll Stash::Impl::wait(Deadline until) {
    const std::uint32_t number = records.take();
    const Poll woken = core.wait(records[number], until);
    if (woken != Poll::record) {
        records.give_back(number);
        return woken;
    }
    Turn turn(*this, monotonic_ns(), Turn::Kind::reads);
    admit(turn, number);
    standstill.note_came(turn.now_ns());
    return woken;
}

// Cuts a batch into `plan` if there is one, and makes room otherwise. `blocked`: nothing was left
// to read; `changed`: since the room was shown.
Stash::Impl::Decided Stash::Impl::decide(std::int64_t now_ns, bool blocked, bool changed) {
    Turn turn(*this, now_ns);
    // The unread rest of the spill may hold a later attempt of a member that would ship.
    bool cut =
        spill_read && backlog.was_read() && turn.groups().cut(now_ns, core.policy_version(), plan);
    // Also before the trainer starts to work: nothing is moved meanwhile.
    const bool relieved = evacuation.make_room(blocked || cut, now_ns);
    if (relieved) standstill.note_moved(now_ns);
    const bool looked = !cut && !relieved && blocked;
    if (looked) {
        const auto waits = standstill.who_waits();
        if (standstill.stuck(waits, now_ns)) {
            cut = turn.groups().cut_rest(now_ns, core.policy_version(), plan);
            batches_short += cut ? 1 : 0;
        } else {
            standstill.let_go(waits, now_ns);
        }
    }
    turn.shows_account(changed || relieved || cut);
    return {cut, looked};
}

bool Stash::Impl::cut_rest(std::int64_t now_ns) {
    Turn turn(*this, now_ns);
    turn.shows_account(true);
    return spill_read && turn.groups().cut_rest(now_ns, core.policy_version(), plan);
}

// Leases the batch of `plan`. `self` owns this object.
void Stash::Impl::ship(Batch& batch, std::shared_ptr<void> self) {
    leases.lease(batch, plan, std::move(self));
    shown.show_batch(leases.latest());
    shown.make_room_ahead(plan.subsequences.size());
    notices.note_batch();
}

NextBatch Stash::Impl::without_batch(Ledger ledger) {
    return ledger == Ledger::broken ? NextBatch::closed : NextBatch::timed_out;
}

NextBatch Stash::next(Batch& batch, Deadline deadline) {
    batch.nack();
    Impl& impl = *impl_;
    if (!impl.core.usable()) return NextBatch::closed;
    // Nor a group that is ready: it could not be acknowledged.
    if (impl.ledger != nullptr && !impl.ledger->problem().empty()) return NextBatch::closed;
    impl.shown.note_back();
    bool blocked = false;
    bool changed = true;  // since the room was shown
    int turns_late = 0;
    int ahead = 0;  // records that were read since a batch is possible that the disk holds back
    const int ahead_most = impl.counts_groups() ? 0 : turns_late_max;
    // A backlog that an earlier call did not finish is read first, so that calls that do not wait
    // make progress.
    const bool goes_on = std::exchange(impl.waits_to_cut, false);
    if (impl.options.order == Order::freshest && impl.backlog.was_read() && !goes_on) {
        impl.backlog.note();
    }
    for (;;) {
        const std::int64_t now = monotonic_ns();
        changed |= impl.tick(now);
        // The disk may not have all of it yet, with Durable::record. The rest is read meanwhile.
        const bool durable = impl.ledger == nullptr || impl.ledger->may_cut();
        if (durable) ahead = 0;
        if (!durable && (blocked || (impl.has_whole_batch() && ahead++ >= ahead_most))) {
            const auto cuts = impl.ask_ledger(true, deadline);
            if (cuts == Impl::Ledger::waited || cuts == Impl::Ledger::takes) continue;
            impl.waits_to_cut = true;
            return Impl::without_batch(cuts);
        }
        const auto [cut, looked] =
            durable ? impl.decide(now, blocked, changed) : Impl::Decided{false, false};
        if (cut) {
            impl.standstill.note_cut();
            FAULT_POINT("cut.before_lease");
            impl.ship(batch, impl_);
            FAULT_POINT("cut.after_lease");
            return NextBatch::batch;
        }
        const auto reads = impl.ask_ledger(false, deadline);
        if (reads == Impl::Ledger::waited) continue;
        if (reads != Impl::Ledger::takes) return Impl::without_batch(reads);
        const Poll got = impl.read(now, Impl::Reads::for_batch);
        if (got == Poll::closed) return NextBatch::closed;
        blocked = got == Poll::empty;
        changed = blocked || (changed && !durable);
        if (impl.core.take_interrupt()) return NextBatch::timed_out;
        const bool late = monotonic_ns() >= deadline.at_ns;
        if (!blocked && late && ++turns_late == turns_late_max) return NextBatch::timed_out;
        if (!blocked) continue;
        // At once: producers that wait for room cannot ring.
        if (impl.evacuation.make_room(true, now)) {
            impl.standstill.note_moved(now);
            changed = true;
            blocked = false;
            continue;
        }
        if (late && looked) return NextBatch::timed_out;
        if (late) continue;
        const std::int64_t until = std::min(
            deadline.at_ns, now + (impl.standstill.all_wait() ? 1'000'000 : tick_every_ns * 5));
        const Poll woken = impl.wait(Deadline{until});
        if (woken == Poll::closed) return NextBatch::closed;
        blocked = woken != Poll::record;
    }
}

void Stash::interrupt() {
    impl_->core.interrupt();
}

NextBatch Stash::rest(Batch& batch) {
    // Also if it is closed: records that were read before the ring was removed are still to be
    // shipped.
    do {
        if (next(batch, Deadline::now()) == NextBatch::batch) return NextBatch::batch;
        if (!impl_->core.usable()) return NextBatch::closed;
        if (impl_->ledger != nullptr && !impl_->ledger->problem().empty()) return NextBatch::closed;
        if (!impl_->wait_cut()) return NextBatch::timed_out;
    } while (impl_->waits_to_cut);
    if (!impl_->cut_rest(monotonic_ns())) return NextBatch::timed_out;
    impl_->ship(batch, impl_);
    return NextBatch::batch;
}

Result<std::uint64_t> Stash::settle(std::string_view receipt, std::int64_t step) {
    return impl_->settle(receipt, step);
}

std::string Stash::problem() const {
    std::string text = impl_->core.problem();
    if (text.empty() && impl_->ledger != nullptr) text = impl_->ledger->problem();
    return text;
}

bool Stash::next_event(Event& event) {
    return impl_->core.usable() && impl_->events.pop(event);
}

}  // namespace rollring
