#include "rollring/stash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fault_point.hpp"
#include "prefetch.hpp"
#include "stash_impl.hpp"

namespace rollring {
namespace {

constexpr int records_per_turn = 64;  // between looks at the clock
constexpr int turns_late_max = 64;    // after the deadline, if records keep coming
constexpr std::int64_t tick_every_ns = 10'000'000;
constexpr std::int64_t blocked_patience_ns = 1'000'000'000;

Arrival arrival_of(const Record& record, std::uint32_t place) {
    const Meta& meta = record.view.meta();
    Arrival arrival;
    arrival.tag = place;
    arrival.producer_lane = record.producer_lane;
    arrival.producer_epoch = record.producer_epoch;
    arrival.key = record.view.group_key();
    arrival.repetition_id = meta.repetition_id;
    arrival.group_size = meta.group_size;
    arrival.segment_index = meta.segment_index;
    arrival.last_segment = meta.last_segment;
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

Stash::Impl::Impl(Consumer reader, const StashOptions& given)
    : consumer(std::move(reader)),
      options(given),
      groups(given, consumer.journal_records()),
      room(ring().map, ring().control()) {}

Stash::Impl::~Impl() {
    close();
}

Result<void> Stash::Impl::start() {
    ring().counts_groups = true;
    ReaderControl& control = ring().control();
    // The spill last, as it is written from then on; its memory first, so that a stash that cannot
    // open keeps none of it.
    Overflow* const overflow = ring().overflow_file();
    if (auto reserved = Spill::reserve_first(ring().map, control, overflow); !reserved) {
        return reserved;
    }
    if (overflow != nullptr && !overflow->usable()) {
        events.push_back({Event::Kind::overflow_failed,
                          ring().map.geometry().spill_lane(),
                          0,
                          {},
                          0,
                          overflow->problem()});
    }
    auto opened = GroupBoard::open(ring().map, control);
    if (!opened) {
        Spill::give_back(ring().map);
        return std::unexpected(opened.error());
    }
    board.emplace(std::move(*opened));
    if (auto spill = ring().open_spill(); !spill) {
        Spill::give_back(ring().map);
        return spill;
    }
    for (const KnownGrave& grave : board->graves()) groups.bury(grave.key, grave.buried_ns);
    const std::uint64_t rows = board->rows();
    max_open_groups = options.max_open_groups != 0
                          ? std::min<std::uint64_t>(options.max_open_groups, rows)
                          : ring().map.geometry().open_groups_most();
    if (options.batch_groups > max_open_groups) {
        return std::unexpected(
            Error{Errc::invalid_argument, 0,
                  fmt::format("batch_groups is {}, but only {} groups may be open at once: raise "
                              "--max-open-groups or create the ring with more --group-rows",
                              options.batch_groups, max_open_groups)});
    }
    if (options.group_size > consumer.journal_records()) {
        return std::unexpected(
            Error{Errc::invalid_argument, 0,
                  fmt::format("group_size is {}, but the ring's journal holds {} records in one "
                              "acknowledgement: create the ring with a larger --journal-records",
                              options.group_size, consumer.journal_records())});
    }
    inherited_groups = peek(control.open_groups);
    copied_before = peek(control.copied_bytes);
    evacuated_before = peek(control.evacuated_records);
    room.start(options);
    publish_account(true);
    show_bounds();
    return {};
}

Stash::Stash(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stash::~Stash() {
    impl_->close();
}

Result<std::unique_ptr<Stash>> Stash::open(std::string_view ring, const StashOptions& options,
                                           const ConsumerOptions& consumer_options) {
    if (auto valid = validate(options); !valid) return std::unexpected(valid.error());
    auto consumer = Consumer::open(ring, consumer_options);
    if (!consumer) return std::unexpected(consumer.error());
    auto impl = std::make_shared<Impl>(std::move(*consumer), options);
    if (auto started = impl->start(); !started) return std::unexpected(started.error());
    return std::unique_ptr<Stash>(new Stash(std::move(impl)));
}

void Stash::Impl::admit(const Waiting& waiting, std::int64_t now_ns) {
    const Record& record = held[waiting.place];
    const Arrival arrival = arrival_of(record, waiting.place);
    room.saw(record.ref.lines);
    spill_read |= record.ref.lane != ring().map.geometry().spill_lane();
    // Its producer may have gone in a predecessor's time, and will not be announced again.
    if (record.redelivered) orphans.emplace(arrival.producer_lane, arrival.producer_epoch);
    const auto slot = groups.admit(arrival, now_ns, consumer.policy_version(), waiting.slot);
    if (slot == GroupStash::no_slot) return;
    room.saw_member(slot, record.ref.lines, arrival.producer_lane);
    const Group& group = groups.group(slot);
    if (group.state == GroupState::free) {
        // Another group may take the slot, and its end must have been shown by then.
        settle_changes(now_ns);
    } else if (group.total.records == 0) {
        // Nothing of it is left to name it later.
        show_touched(now_ns);
        if (board->wants_name(slot)) board->name(slot, record.view.instance_id());
    }
}

// After all that has been read was admitted: groups count as open, and their bytes as owed, before
// they cease to be announced.
void Stash::Impl::show_admitted(std::int64_t now_ns) {
    show_touched(now_ns);
    publish_open_groups();
    publish_room();
    ring().publish_groups();
    release_dropped();
}

// In this order: the graves of dropped groups are dug before their records leave.
void Stash::Impl::settle_changes(std::int64_t now_ns) {
    show_touched(now_ns);
    release_dropped();
}

// The records of a dropped group leave as one event: a successor must not find half of it. After
// its grave is dug (show_touched): killed between the two, it finds them once more, and late.
void Stash::Impl::release_dropped() {
    auto& dropped = groups.dropped();
    if (dropped.empty()) return;
    FAULT_POINT("drop.before");
    if (dropped.size() == 1) {
        ring().release(held[dropped.front().tag].ref);
    } else {
        std::vector<RecordRef> refs;
        refs.reserve(dropped.size());
        for (const Dropped& one : dropped) refs.push_back(held[one.tag].ref);
        const std::span<const RecordRef> all(refs);
        const std::uint64_t most = consumer.journal_records();
        for (std::size_t at = 0; at < all.size(); at += most) {
            static_cast<void>(ring().release_all(
                all.subspan(at, std::min<std::uint64_t>(most, all.size() - at)), -1, true));
        }
    }
    FAULT_POINT("drop.after");
    for (const Dropped& one : dropped) {
        const Record& record = held[one.tag];
        repeats.dropped({record.producer_lane, record.producer_epoch}, one.reason);
        held.give_back(one.tag);
    }
    dropped.clear();
}

bool Stash::Impl::tick(std::int64_t now_ns) {
    if (now_ns - ticked_ns < tick_every_ns) return false;
    ticked_ns = now_ns;
    show_bounds();
    hear_events(now_ns);
    keep_deadlines(now_ns);
    settle_changes(now_ns);
    return true;
}

// A group that is due is settled once all has been read that had been sent by then: what completes
// it may lie in a lane, unread while we trained or while there was no trainer.
void Stash::Impl::keep_deadlines(std::int64_t now_ns) {
    if (noted_ns != 0) {
        // A blocked lane may wait for the very groups that are due.
        const bool patient = now_ns - noted_ns < blocked_patience_ns;
        if (!ring().noted_was_read(patient)) return;
        groups.tick(noted_ns);
    }
    noted_ns = now_ns;
    ring().note_tails();
}

// A producer's end is told after its last record: what it has begun will not be finished.
void Stash::Impl::hear_events(std::int64_t now_ns) {
    Event event;
    while (consumer.next_event(event)) {
        if (event.kind == Event::Kind::producer_lost ||
            event.kind == Event::Kind::producer_closed) {
            groups.producer_gone(event.lane, event.epoch, now_ns);
            repeats.ended({event.lane, event.epoch}, event.producer, event.records);
        }
        events.push_back(std::move(event));
        if (events.size() > 1024) events.pop_front();
    }
}

// Producers of redelivered records whose end a predecessor was told of. Called when all that they
// left has been read.
void Stash::Impl::settle_orphans(std::int64_t now_ns) {
    for (const auto& [lane, epoch] : orphans) {
        if (lane >= ring().map.geometry().lane_count) continue;
        const bool here = observe(ring().map.owner(lane).epoch) == epoch &&
                          observe(ring().map.entry(lane).retired_epoch) != epoch;
        if (!here) groups.producer_gone(lane, epoch, now_ns);
    }
    orphans.clear();
}

// Each group once: one call may touch it several times.
void Stash::Impl::show_touched(std::int64_t now_ns, bool buried) {
    auto& touched = groups.touched();
    std::ranges::sort(touched);
    const auto twice = std::ranges::unique(touched);
    touched.erase(twice.begin(), twice.end());
    for (const std::uint32_t slot : touched) {
        board->show(slot, groups.group(slot), now_ns, buried);
        room.owes(slot, groups.members_awaited(groups.group(slot)),
                  groups.group(slot).state == GroupState::free);
        if (!board->wants_name(slot)) continue;
        const auto tag = groups.group(slot).any_tag();
        if (tag) board->name(slot, held[*tag].view.instance_id());
    }
    touched.clear();
}

void Stash::Impl::publish_room() {
    Spill* const spill = ring().spill ? &*ring().spill : nullptr;
    if (spill != nullptr) spill->note_live(*ring().feeds[ring().map.geometry().spill_lane()]);
    room_grew |= room.publish(ring().active, ring().feeds, spill);
    if (room.runs_short(ring().active)) grow_room(monotonic_ns());
}

// For everybody outside: producers who wait to open a group, and people.
void Stash::Impl::publish_account(bool room_changed) {
    ReaderControl& control = ring().control();
    publish_open_groups();
    control.held_bytes.store(ring().held_bytes());
    if (room_changed) publish_room();
    auto& page = ring().reader_pages.at<StashPage>(sizeof(ReaderControl));
    const StashAccount& account = groups.account();
    // Odd if a predecessor was killed in here.
    const std::uint64_t sequence = peek(page.sequence) & ~std::uint64_t{1};
    publish(page.sequence, sequence + 1);
    std::size_t at = 0;
    account.for_each_word([&](std::uint64_t word) { poke(page.words[at++], word); });
    publish(page.sequence, sequence + 2);
    wake_openers();
}

// As many as are worked on at once. `got`: what poll() said last.
std::span<Stash::Impl::Waiting> Stash::Impl::read_some(Poll& got) {
    for (Waiting& next : at_hand) {
        next.place = held.take();
        prefetch_to_write(held[next.place], record_bytes_used);
    }
    std::size_t count = 0;
    for (; count < at_hand.size(); count++) {
        Record& record = held[at_hand[count].place];
        got = consumer.poll(record);
        if (got != Poll::record) break;
        groups.prefetch_index(record.view.group_key());
    }
    for (std::size_t i = at_hand.size(); i > count; i--) held.give_back(at_hand[i - 1].place);
    return std::span(at_hand).first(count);
}

// Reads for a while, and no more than makes a batch possible. Poll::empty if nothing came.
Poll Stash::Impl::turn(std::int64_t now_ns) {
    polled = true;
    Poll got = Poll::record;
    int left = records_per_turn;
    bool came_any = false;
    do {
        const std::span<Waiting> came = read_some(got);
        came_any |= !came.empty();
        for (Waiting& one : came) {
            one.slot = groups.prefetch_group(held[one.place].view.group_key());
        }
        for (const Waiting& one : came) groups.prefetch_member(one.slot);
        for (const Waiting& one : came) admit(one, now_ns);
        publish_open_groups();  // a lane that has ended announces nothing any more
        left -= records_at_once;
    } while (left > 0 && got == Poll::record && !groups.may_cut());
    if (came_any) note_came(now_ns);
    show_admitted(now_ns);
    if (got == Poll::empty) {
        spill_read = true;
        caught_up = true;
        inherited_groups = 0;
        room.forget_inherited();
        settle_orphans(now_ns);
        settle_changes(now_ns);
    }
    return got == Poll::empty && came_any ? Poll::record : got;
}

NextBatch Stash::next_batch(Batch& batch, Deadline deadline) {
    batch.nack();
    Impl& impl = *impl_;
    if (!impl.ring().usable()) return NextBatch::closed;
    bool blocked = false;
    bool looked = false;  // who waits, since all was read; also by a call that may not wait
    bool changed = true;  // since the room was published
    int turns_late = 0;
    for (;;) {
        const std::int64_t now = monotonic_ns();
        changed |= impl.tick(now);
        // The rest of the spill may hold a later attempt of what would be shipped.
        bool cut =
            impl.spill_read && impl.groups.cut(now, impl.consumer.policy_version(), impl.plan);
        // Also before the trainer goes to work: nothing is moved while it does.
        const bool relieved = impl.relieve(blocked || cut, now);
        if (relieved) impl.moved_ns = now;
        looked = !cut && !relieved && blocked;
        if (looked) {
            const auto waits = impl.who_waits();
            if (impl.stuck(waits, now)) {
                cut = impl.groups.cut_rest(now, impl.consumer.policy_version(), impl.plan);
                impl.batches_short += cut ? 1 : 0;
            } else {
                impl.let_go(waits, now);
            }
        }
        impl.settle_changes(now);
        impl.publish_account(changed || relieved || cut);
        changed = false;
        if (cut) {
            impl.standing.impatient = false;
            FAULT_POINT("cut.before_lease");
            impl.lease(batch, *this);
            FAULT_POINT("cut.after_lease");
            return NextBatch::batch;
        }
        const Poll got = impl.turn(now);
        if (got == Poll::closed) return NextBatch::closed;
        blocked = got == Poll::empty;
        changed |= blocked;
        const bool late = monotonic_ns() >= deadline.at_ns;
        if (!blocked && late && ++turns_late == turns_late_max) return NextBatch::timed_out;
        if (!blocked) continue;
        if (impl.relieve(true, now)) {  // at once: producers that wait for room cannot ring
            impl.moved_ns = now;
            changed = true;
            blocked = false;
            continue;
        }
        if (late && looked) return NextBatch::timed_out;
        if (late) continue;
        const std::int64_t until =
            std::min(deadline.at_ns, now + (impl.standing.all ? 1'000'000 : tick_every_ns * 5));
        const std::uint32_t place = impl.held.take();
        const Poll woken = impl.consumer.wait(impl.held[place], Deadline{until});
        if (woken == Poll::record) {
            blocked = false;
            const std::int64_t then = monotonic_ns();
            impl.admit({place, GroupStash::no_slot}, then);
            impl.note_came(then);
            impl.show_admitted(then);
        } else {
            impl.held.give_back(place);
        }
        if (woken == Poll::closed) return NextBatch::closed;
    }
}

NextBatch Stash::rest(Batch& batch) {
    batch.nack();
    if (!impl_->ring().usable()) return NextBatch::closed;
    const std::int64_t now = monotonic_ns();
    impl_->hear_events(now);
    const bool cut = impl_->spill_read &&
                     impl_->groups.cut_rest(now, impl_->consumer.policy_version(), impl_->plan);
    impl_->settle_changes(now);
    impl_->publish_account(true);
    if (!cut) return NextBatch::timed_out;
    impl_->lease(batch, *this);
    return NextBatch::batch;
}

Result<std::uint64_t> Stash::settle(std::string_view receipt, std::int64_t step) {
    return impl_->settle(receipt, step);
}

StashAccount Stash::account() const {
    return impl_->groups.account();
}
StashCopies Stash::copies() const {
    const ReaderControl& control = impl_->ring().control();
    return {peek(control.copied_bytes) - impl_->copied_before,
            peek(control.evacuated_records) - impl_->evacuated_before, impl_->batches_short};
}
std::size_t Stash::open_groups() const {
    return impl_->groups.open_groups();
}
bool Stash::no_progress() const {
    return impl_->groups.no_progress(monotonic_ns());
}
const Consumer& Stash::consumer() const {
    return impl_->consumer;
}

std::string Stash::problem() const {
    return impl_->consumer.problem();
}

bool Stash::next_event(Event& event) {
    if (!impl_->ring().usable() || impl_->events.empty()) return false;
    event = std::move(impl_->events.front());
    impl_->events.pop_front();
    return true;
}

}  // namespace rollring
