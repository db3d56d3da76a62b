#include "lane_feed.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "liveness.hpp"

namespace rollring {
namespace {

constexpr int duplicates_max = 64;  // per call, so that other lanes get their turn
constexpr const char* found_by_earlier = "found damaged by an earlier consumer";

bool is_closed(const LaneOwner& owner) {
    return observe(owner.state) == static_cast<std::uint32_t>(OwnerState::closed);
}

void describe(const Frame& frame, std::span<const std::byte> payload, Record& record) {
    record.bytes = payload;
    record.producer_lane = frame.lane;
    record.producer_epoch = frame.epoch;
    record.sequence = frame.sequence;
    record.committed_ns = frame.committed_ns;
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): the parts of one object
LaneFeed::LaneFeed(std::uint32_t lane, NativeReader reader, Mapping bits, const std::byte* data,
                   const LaneOwner& owner, ReaderEntry& entry)
    : lane_(lane),
      reader_(reader),
      bits_(std::move(bits)),
      data_(data),
      owner_(&owner),
      entry_(&entry),
      claims_(entry),
      damage_(entry) {}

Result<LaneFeed> LaneFeed::open(const RingMap& map, const Mapping& segment,
                                const Mapping& reader_pages, std::uint32_t lane, bool all_ours) {
    const Geometry& geometry = map.geometry();
    auto bits = map.segment().map(geometry.bits_offset(lane), geometry.bits_bytes(lane), true);
    if (!bits) return std::unexpected(bits.error());
    auto& entry = reader_pages.at<ReaderEntry>(
        geometry.entries_offset() - geometry.reader_offset() + lane * sizeof(ReaderEntry));
    std::byte* data = segment.data() + geometry.data_offset(lane);
    const LaneOwner& owner = map.owner(lane);
    NativeReader reader(owner.tail, entry.head, entry.cursor,
                        &bits->at<std::atomic<std::uint64_t>>(0), NativePlatform::Frames{data},
                        geometry.capacity(lane));
    LaneFeed feed(lane, reader, std::move(*bits), data, owner, entry);
    feed.size_ = LaneSize(geometry.capacity(lane));
    feed.is_spill_ = lane == geometry.spill_lane();
    feed.ring_id_ = map.ring_id();
    // Read before the tail: begin_epoch() handles a producer that takes the lane later.
    const bool taken = !feed.is_spill_ && !map.lane_is_idle(lane);
    feed.recover(taken || feed.is_spill_ || map.lane_is_sound(lane));
    FAULT_POINT("join.after_recover");
    if (taken) {
        feed.begin_epoch();
    } else if (feed.quarantined()) {
        if (auto mended = feed.mend(map); !mended) return std::unexpected(mended.error());
    } else {
        // From here on only this process writes the spill, so its tail need not be polled.
        if (feed.is_spill_) feed.book_.restart(feed.reader_.recovered_to());
        feed.reader_.stop(feed.restart_at());
    }
    // A predecessor may have read and released some of the producer's records.
    const bool untouched = feed.delivered_at_attach_ == 0 && feed.reader_.cursor() == 0;
    if (!all_ours && !untouched) feed.book_.begun_before();
    return feed;
}

// Our own words are read once, here: later overwrites by other processes have no effect.
void LaneFeed::recover(bool sound) {
    delivered_at_attach_ = peek(entry_->delivered);
    if (!is_spill_) {
        damage_.recover();
        book_.recover(peek(entry_->restart_at), peek(entry_->restart_epoch));
    }
    const bool recovered = reader_.recover(delivered_at_attach_, restart_at()) && sound;
    holdings_.oldest_at(reader_.cursor());
    if (is_spill_) delivered_at_attach_ = ~std::uint64_t{0};  // delivered before, from their lanes
    if (!recovered) {
        static_cast<void>(quarantine(Quarantine::bad_tail, "positions contradict each other"));
    }
}

// Clears an idle lane whose words are inconsistent, so that its next producer starts clean.
Result<void> LaneFeed::mend(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    auto there = map.segment().reserve(geometry.bits_offset(lane_), geometry.bits_bytes(lane_));
    if (!there) return there;
    damage_.torn(true, problem());
    start_over();
    book_.restart(reader_.read_position());
    if (!is_spill_) store_release(entry_->restart_at, restart_at());
    reader_.stop(restart_at());
    return {};
}

// Requires that no record is held.
void LaneFeed::start_over() {
    add(entry_->dropped_bytes, reader_.start_over());
    FAULT_POINT("retire.after_start_over");
    damage_.heal();
    book_.start_over();  // it may hold an epoch that never existed
}

// Other processes only read these words. They are rewritten from time to time, in case one of them
// was overwritten. True if the lane was blocked by overwritten released-bits.
bool LaneFeed::show_again() {
    reader_.show_again();
    if (!is_spill_) {
        claims_.show_again();
        keep(entry_->restart_epoch, book_.restart_epoch());
        keep(entry_->restart_at, restart_at());
        if (active_) keep(entry_->begun_epoch, epoch());
    }
    damage_.show_again();
    if (quarantined() || unreleased_bytes() != 0 || !reader_.pass_released()) return false;
    holdings_.oldest_at(reader_.cursor());
    note_torn(reader_.read_position(), "its released bits were overwritten");
    return true;
}

void LaneFeed::begin_epoch() {
    reader_.go_on();
    book_.begin(peek(entry_->retired_epoch) + 1);
    active_ = true;
    store_release(entry_->begun_epoch, epoch());
}

// Damage below the present producer's start is an earlier producer's: only the rest of that part is
// given up. Damage in the spill, which may lie in a file, costs only the frames that it hits.
LaneFeed::Feed LaneFeed::damaged(const Span& span, Quarantine reason, std::string why) {
    if (is_spill_) {
        add(entry_->dropped_bytes, span.bytes);
        return give_up_torn(span, std::move(why));
    }
    reader_.put_back(span.position);
    if (span.position >= restart_at()) return quarantine(reason, std::move(why));
    damage_.block(std::move(why));
    return pass_damage();
}

LaneFeed::Feed LaneFeed::give_up_torn(const Span& span, std::string why) {
    note_torn(span.position, std::move(why));
    give_up(span, 1);
    return Feed::torn;
}

// Requires that no earlier record is held.
LaneFeed::Feed LaneFeed::pass_damage() {
    if (reader_.held_bytes() != 0) return Feed::empty;
    const std::uint64_t at = reader_.read_position();
    note_torn(at, problem());
    add(entry_->dropped_bytes, restart_at() - at);
    reader_.pass_over(restart_at());
    holdings_.oldest_at(reader_.cursor());
    damage_.unblock();
    return Feed::torn;
}

LaneFeed::Feed LaneFeed::quarantine(Quarantine reason, std::string why) {
    damage_.quarantine(reason, std::move(why));
    return Feed::quarantined;
}

// The reader has passed over records that a predecessor released out of order.
void LaneFeed::learn_of_passed() {
    const Frame& passed = reader_.passed();
    if (book_.pass(passed)) claims_.read(passed, passed.position < delivered_at_attach_);
}

EpochBook::Turn LaneFeed::turn_of(const Frame& frame) {
    using enum EpochBook::Turn;
    if (is_spill_) return frame.lane < lane_ ? next : impossible;  // of a lane
    if (frame.lane != lane_ || !book_.of_its_time(frame)) return impossible;
    learn_of_passed();
    std::uint64_t lost = 0;
    const EpochBook::Turn turn = book_.take(frame, lost);
    // The predecessor has counted the gaps below its delivered position.
    if (lost != 0 && frame.position >= delivered_at_attach_) add(entry_->lost, lost);
    return turn;
}

LaneFeed::Feed LaneFeed::next(Record& record, const Schema& schema) {
    if (quarantined()) return Feed::empty;
    if (blocked()) return pass_damage();
    // Unreleased records of the predecessor come first, then the damage that it found.
    const bool found = damage_.found() != Quarantine::none;
    if (found && read_position() >= delivered_at_attach_) {
        return quarantine(damage_.found(), found_by_earlier);
    }
    Frame frame;
    int repeated = 0;
    for (;;) {
        switch (reader_.poll(frame)) {
            case LanePoll::record:
                break;
            case LanePoll::empty:
                noted_tail_ = 0;  // ignore the noted tail
                if (found) return quarantine(damage_.found(), found_by_earlier);
                return Feed::empty;
            case LanePoll::bad_tail:
                return quarantine(Quarantine::bad_tail, "its tail is invalid");
            case LanePoll::bad_frame: {
                const Span lost{read_position(), is_spill_ ? reader_.pass_damage() : 0};
                if (is_spill_ && lost.bytes == 0) continue;
                return damaged(lost, Quarantine::bad_frame,
                               fmt::format("no frame at position {}", lost.position));
            }
        }
        const Span span{frame.position, frame.bytes};
        const EpochBook::Turn turn = turn_of(frame);
        if (turn == EpochBook::Turn::impossible) {
            return damaged(span, Quarantine::bad_sequence,
                           fmt::format("the frame at position {} claims lane {} epoch {}",
                                       frame.position, frame.lane, frame.epoch));
        }
        if (turn == EpochBook::Turn::repeated) {
            add(entry_->duplicates, std::uint64_t{1});
            give_up(span, 1);
            if (++repeated < duplicates_max) continue;
            return Feed::empty;
        }
        reader_.prefetch_ahead(frame.bytes);
        const std::byte* payload = data_ + size_.offset(frame.position) + line_bytes;
        const auto problem = record.view.parse({payload, frame.payload_bytes}, schema);
        if (!problem.empty()) {
            return give_up_torn(span, fmt::format("sequence {}: {}", frame.sequence, problem));
        }
        if (record.view.run_id() != ring_id_) {
            return damaged(span, Quarantine::bad_sequence,
                           fmt::format("the record at position {} was written for another ring",
                                       frame.position));
        }
        record.ref = ref_to(frame);
        describe(frame, {payload, frame.payload_bytes}, record);
        record.redelivered = frame.position < delivered_at_attach_;
        FAULT_POINT("poll.before_account");
        if (!record.redelivered) poke(entry_->delivered, reader_.read_position());
        if (is_spill_) {
            holdings_.note_largest(frame.bytes);
        } else {
            claims_.read(frame, record.redelivered);
        }
        holdings_.deliver(frame.bytes, reader_.cursor());
        add(entry_->records, std::uint64_t{record.redelivered ? 0U : 1U});
        add(entry_->redelivered, std::uint64_t{record.redelivered ? 1U : 0U});
        book_.count_record();
        return Feed::record;
    }
}

bool LaneFeed::oldest(RecordRef& ref, Frame& frame) const {
    const std::uint64_t at = reader_.cursor();
    if (!reader_.frame_at(at, reader_.read_position(), frame) || !is_record(frame)) return false;
    ref = ref_to(frame);
    return true;
}

bool LaneFeed::frame_at(std::uint64_t position, Frame& frame) const {
    return reader_.frame_at(position, reader_.recovered_to(), frame);
}

bool LaneFeed::undelivered(std::uint64_t position, RecordRef& ref, Frame& frame) const {
    if (position < reader_.read_position() || !frame_at(position, frame)) return false;
    ref = ref_to(frame);
    return is_record(frame) && !reader_.is_released(position);
}

void LaneFeed::pass_written(const Span& span) {
    const bool followed = reader_.follow(span);
    ROLLRING_ASSERT(followed, fmt::format("more skips than possible before {}", span.position));
    if (span.bytes == 0) return;
    holdings_.note_largest(span.bytes);
    holdings_.deliver(span.bytes, reader_.cursor());
}

bool LaneFeed::ended(const RingMap& map) const {
    return is_closed(*owner_) || !map.producer_alive(lane_);
}

// In quarantine the cursor is not reliable: the released-bits above it may have been overwritten.
bool LaneFeed::drained() const {
    if (damage_.found() != Quarantine::none && !quarantined()) return false;  // next() reports it
    return quarantined() ? unreleased_bytes() == 0 : reader_.drained();
}

Event LaneFeed::event(Event::Kind kind) const {
    const bool of_earlier = damage_.of_earlier();
    if (of_earlier && kind == Event::Kind::torn) {
        return {kind, lane_, 0, {}, 0, problem() + ": from an earlier producer of the lane"};
    }
    const std::string why = of_earlier ? std::string() : problem();
    return {kind, lane_, epoch(), load_name(*owner_), book_.records(), why};
}

Event LaneFeed::retire(const RingMap& map) {
    const bool normal = is_closed(*owner_);
    Event happened = event(normal ? Event::Kind::producer_closed : Event::Kind::producer_died);
    const bool given_up = quarantined();
    if (given_up) start_over();
    damage_.heal();  // our page's word may have been overwritten
    // The producer stores its count after the tail, so the count never exceeds the sent records.
    learn_of_passed();
    if (const auto next = book_.records_seen();
        next && !given_up && peek(owner_->records) > *next) {
        add(entry_->lost, peek(owner_->records) - *next);
    }
    add(normal ? entry_->producers_closed : entry_->producers_died, std::uint64_t{1});
    if (normal && reader_.held_bytes() == 0 && !map.has_share_readers()) {
        const Geometry& geometry = map.geometry();
        map.segment().give_back(geometry.bits_offset(lane_), geometry.stride(lane_));
        FAULT_POINT("retire.after_give_back");
    }
    claims_.write_off(*owner_);
    active_ = false;
    damage_.forget_problem();
    book_.end(reader_.read_position());
    store_release(entry_->restart_epoch, book_.restart_epoch());
    FAULT_POINT("retire.after_restart");
    reader_.stop(restart_at());
    store_release(entry_->restart_at, restart_at());
    FAULT_POINT("retire.before_epoch");
    store_release(entry_->retired_epoch, epoch());
    return happened;
}

}  // namespace rollring
