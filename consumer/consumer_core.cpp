#include "consumer_core.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace rollring {
namespace {

struct Released {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
};

constexpr int torn_max = 64;  // per poll: damaged records of one producer must not delay the others

}  // namespace

ConsumerCore::ConsumerCore(ReaderSeat seat, const ConsumerOptions& options, Arrive groups_arrive)
    : seat_(std::move(seat)),
      roster_(seat_),
      journal_(map().geometry(), seat_.reader_pages()),
      spin_ns_(std::thread::hardware_concurrency() < 2 ? 0 : options.spin.count()),
      groups_arrive_(groups_arrive) {}

Result<void> ConsumerCore::start() {
    FAULT_POINT("seat.after_lock");
    ReaderControl& own = control();
    before_ = totals();
    poke(own.pid, static_cast<std::uint32_t>(getpid()));
    store_release(own.epoch, peek(own.epoch) + 1);
    if (auto recovered = recover(); !recovered) return recovered;
    last_step_ = peek(own.last_acked_step);  // after the replay of the journal
    return {};
}

Result<void> ConsumerCore::recover() {
    if (auto moved = journal_.recover_spill_tail(map()); !moved) return moved;
    if (auto taken = roster_.take_over(); !taken) return taken;
    FAULT_POINT("recover.before_journal");
    journal_.recover([&](const JournalEntry& entry) {
        if (!roster_.has(entry.lane)) return;
        const Span span{entry.position, entry.bytes()};
        if (!roster_.feed(entry.lane).covers(span)) return;
        FAULT_POINT("recover.while_marking");
        roster_.feed(entry.lane).mark(span);
    });
    FAULT_POINT("recover.after_journal");
    return {};
}

Result<void> ConsumerCore::check_usable() const {
    if (usable()) return {};
    return refused(Errc::forked, problem());
}

Result<void> ConsumerCore::check_step(std::int64_t step) const {
    if (step >= 0 && step >= last_step_) return {};
    return refused(
        Errc::invalid_argument,
        fmt::format(
            "step {}: steps must be 0 or more and must not decrease, and the last acknowledged "
            "step of ring {} is {}; a restarted trainer continues after last_acked_step()",
            step, map().segment().ring(), last_step_));
}

std::string ConsumerCore::problem() const {
    if (std::string forked = seat_.problem(); !forked.empty()) return forked;
    if (!roster_.forsaken()) return {};
    return fmt::format(
        "ring {} was removed, and all records that its producers had sent have been read",
        map().segment().ring());
}

void ConsumerCore::interrupt() {
    if (usable()) interruption_.raise(map().consumer_bell());
}

Poll ConsumerCore::poll(Record& record) {
    if (!usable()) return Poll::closed;
    roster_.look_if_due();
    int torn = 0;
    for (std::size_t tried = 0; tried < roster_.active().size();) {
        LaneFeed& feed = roster_.at_turn();
        if (feed.idle()) {
            roster_.next_turn();
            tried++;
            continue;
        }
        const std::uint64_t head = feed.head();
        if (groups_arrive_ == Arrive::when_read) feed.claims().tell();
        const LaneFeed::Feed got = feed.next(record, map().schema());
        if (feed.head() != head) ring_bell(map().lane_bell(feed.lane()));
        switch (got) {
            case LaneFeed::Feed::record:
                count(record);
                if (groups_arrive_ == Arrive::when_released)
                    feed.claims().note(record.ref.position);
                // The spill is read completely before the lanes: its records are older than theirs.
                if (!feed.is_spill()) roster_.delivered(record.ref.bytes());
                return Poll::record;
            case LaneFeed::Feed::torn:
                roster_.tell(feed.event(Event::Kind::torn));
                if (++torn < torn_max) continue;
                break;
            case LaneFeed::Feed::quarantined:
                roster_.tell(feed.event(Event::Kind::quarantined));
                break;
            case LaneFeed::Feed::empty:
                break;
        }
        roster_.next_turn();
        tried++;
    }
    roster_.look_while_idle();
    return Poll::empty;
}

void ConsumerCore::count(const Record& record) {
    stats_.records++;
    stats_.tokens += record.view.n_tokens();
    stats_.bytes += record.ref.bytes();
    stats_.redelivered += record.redelivered ? 1 : 0;
}

bool ConsumerCore::view(const RecordRef& record, TrajectoryView& view) const {
    view = TrajectoryView();
    const Geometry& geometry = map().geometry();
    const LaneSize size(geometry.capacity(record.lane));
    const std::uint64_t offset = size.offset(record.position);
    ROLLRING_ASSERT(record.lines != 0 && record.bytes() <= size.bytes() - offset &&
                        record.position % line_bytes == 0,
                    fmt::format("lane {} lines {}", record.lane, record.lines));
    std::byte* data = seat_.all().data() + geometry.data_offset(record.lane);
    Frame frame;
    const bool same = checked_frame(NativePlatform::Frames{data}, size, record.position,
                                    record.position + record.bytes(), frame) &&
                      is_record(frame) && frame.bytes == record.bytes();
    // The content was verified at delivery.
    const bool whole = same && view.parse({data + offset + line_bytes, frame.payload_bytes},
                                          map().schema(), TrajectoryView::Look::again)
                                   .empty();
    if (!whole) view = TrajectoryView();
    return whole;
}

void ConsumerCore::release(const RecordRef& record) {
    FAULT_POINT("release.before");
    roster_.feed(record.lane).release({record.position, record.bytes()});
    FAULT_POINT("release.after");
    ring_bell(map().lane_bell(record.lane));
}

Result<void> ConsumerCore::release_all(std::span<const RecordRef> records, std::int64_t step,
                                       bool delivered) {
    if (auto usable = check_usable(); !usable) return usable;
    if (records.size() > journal_.entries_max()) {
        journal_.forget_tombstones();
        return refused(Errc::journal_full,
                       fmt::format("{} records in one acknowledgement, but the ring's journal "
                                   "holds {}: create it with larger --journal-records",
                                   records.size(), journal_.entries_max()));
    }
    std::vector<Released> released(roster_.feeds().size());
    for (const RecordRef& record : records) {
        ROLLRING_ASSERT(roster_.has(record.lane), fmt::format("lane {}", record.lane));
        released[record.lane].records++;
        released[record.lane].bytes += record.bytes();
    }
    FAULT_POINT("ack.before_journal");
    journal_.release_all(records, step, [&](const JournalEntry& entry) {
        roster_.feed(entry.lane).mark({entry.position, entry.bytes()});
    });
    if (step >= 0) last_step_ = step;
    FAULT_POINT("ack.before_advance");
    for (std::uint32_t lane = 0; lane < released.size(); lane++) {
        if (released[lane].records == 0) continue;
        roster_.feed(lane).advance(released[lane].records, delivered ? released[lane].bytes : 0);
        ring_bell(map().lane_bell(lane));
    }
    FAULT_POINT("ack.after");
    return {};
}

// The sums of the counters in the segment, over all consumers so far.
ConsumerStats ConsumerCore::totals() const {
    ConsumerStats sum{};
    for (std::uint32_t lane = 0; lane < map().geometry().lane_count; lane++) {
        const ReaderEntry& entry = map().entry(lane);
        sum.released += peek(entry.released);
        sum.lost += peek(entry.lost);
        sum.duplicates += peek(entry.duplicates);
        sum.torn += peek(entry.torn);
        sum.producers_died += peek(entry.producers_died);
        sum.producers_closed += peek(entry.producers_closed);
        sum.dropped_bytes += peek(entry.dropped_bytes);
    }
    return sum;
}

ConsumerStats ConsumerCore::stats() const {
    const ConsumerStats now = totals();
    ConsumerStats stats = stats_;
    stats.released = now.released - before_.released;
    stats.lost = now.lost - before_.lost;
    stats.duplicates = now.duplicates - before_.duplicates;
    stats.torn = now.torn - before_.torn;
    stats.producers_died = now.producers_died - before_.producers_died;
    stats.producers_closed = now.producers_closed - before_.producers_closed;
    stats.dropped_bytes = now.dropped_bytes - before_.dropped_bytes;
    roster_.add_to(stats);
    return stats;
}

}  // namespace rollring
