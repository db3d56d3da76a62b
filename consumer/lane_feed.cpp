#include "lane_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "prefetch.hpp"

namespace rollring {
namespace {

constexpr int duplicates_max = 64;  // in one look: the other lanes want their turn

}  // namespace

LaneFeed::LaneFeed(std::uint32_t lane, NativeReader reader, Mapping bits, const std::byte* data,
                   const LaneOwner& owner, ReaderEntry& entry)
    : lane_(lane),
      reader_(reader),
      bits_(std::move(bits)),
      data_(data),
      owner_(&owner),
      entry_(&entry) {}

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
    // Asked before the tail is read: who takes it from now on is met by begin_epoch().
    const bool taken = !feed.is_spill_ && !map.lane_is_idle(lane);
    feed.recover(taken || feed.is_spill_ || map.lane_is_sound(lane));
    FAULT_POINT("join.after_recover");
    if (taken) {
        feed.begin_epoch();
    } else if (feed.quarantined_) {
        if (auto mended = feed.mend(map); !mended) return std::unexpected(mended.error());
    } else {
        // Behind what was there, the spill gets what we write ourselves: no tail tells of that.
        if (feed.is_spill_) feed.restart_at_ = feed.reader_.recovered_to();
        feed.reader_.stop(feed.restart_at_);
    }
    // A predecessor may have read and released some of what the producer has sent so far.
    const bool untouched = feed.delivered_at_attach_ == 0 && feed.reader_.cursor() == 0;
    if (!all_ours && !untouched) feed.whole_epoch_ = 0;
    return feed;
}

// What we say ourselves is read once, here, and held to from now on: others can write over it.
void LaneFeed::recover(bool sound) {
    delivered_at_attach_ = peek(entry_->delivered);
    groups_read_ = groups_told_ = peek(entry_->groups_arrived);
    lines_read_ = lines_told_ = peek(entry_->lines_arrived);
    if (!is_spill_) {
        found_damaged_ = static_cast<Quarantine>(observe(entry_->quarantine));
        restart_at_ = peek(entry_->restart_at);
        restart_epoch_ = peek(entry_->restart_epoch);
    }
    const bool recovered = reader_.recover(delivered_at_attach_, restart_at_) && sound;
    note_cursor();
    if (is_spill_) delivered_at_attach_ = ~std::uint64_t{0};  // from their lanes
    if (!recovered) {
        static_cast<void>(quarantine(Quarantine::bad_tail, "positions contradict each other"));
    }
}

// Nobody has the lane, and what its pages say contradicts itself: what it held is given up, and its
// next producer starts clean.
Result<void> LaneFeed::mend(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    auto there = map.segment().reserve(geometry.bits_offset(lane_), geometry.bits_bytes(lane_));
    if (!there) return there;
    note_torn(reader_.read_position(), std::move(problem_));
    torn_of_earlier_ = true;
    start_over();
    restart_at_ = reader_.read_position();
    if (!is_spill_) publish(entry_->restart_at, restart_at_);
    reader_.stop(restart_at_);
    return {};
}

// Only once nothing is held.
void LaneFeed::start_over() {
    add(entry_->dropped_bytes, reader_.start_over());
    FAULT_POINT("retire.after_start_over");
    publish(entry_->quarantine, static_cast<std::uint32_t>(Quarantine::none));
    quarantined_ = false;
    found_damaged_ = Quarantine::none;
    last_epoch_ = 0;  // it may have claimed one that never was; no old frame is left to compare
}

// Others only read these words: what they say now and then is said again, should somebody have
// written over it. True if released-bits were lost so, and the lane stood still for it.
bool LaneFeed::show_again() {
    reader_.show_again();
    if (!is_spill_) {
        keep(entry_->lines_arrived, lines_told_);
        keep(entry_->groups_arrived, groups_told_);
        keep(entry_->restart_epoch, restart_epoch_);
        keep(entry_->restart_at, restart_at_);
        if (active_) keep(entry_->begun_epoch, epoch_);
    }
    if (!quarantined_ && found_damaged_ == Quarantine::none) {
        keep(entry_->quarantine, static_cast<std::uint32_t>(Quarantine::none));
    }
    if (quarantined_ || unreleased_bytes_ != 0 || !reader_.pass_released()) return false;
    note_cursor();
    note_torn(reader_.read_position(), "its released-bits were written over");
    return true;
}

void LaneFeed::begin_epoch() {
    reader_.go_on();
    epoch_ = whole_epoch_ = peek(entry_->retired_epoch) + 1;
    active_ = true;
    epoch_records_ = 0;
    publish(entry_->begun_epoch, epoch_);
}

// What one producer damaged is not the next one's fault: if it lies below where that one began,
// all that is left there is given up, and no more.
LaneFeed::Feed LaneFeed::damaged(std::uint64_t position, Quarantine reason, std::string why) {
    reader_.put_back(position);
    if (position >= restart_at_) {
        return quarantine(reason, std::move(why));
    }
    blocked_ = true;
    problem_ = std::move(why);
    return pass_damage();
}

// Once nothing before it is held.
LaneFeed::Feed LaneFeed::pass_damage() {
    if (reader_.held_bytes() != 0) return Feed::empty;
    const std::uint64_t at = reader_.read_position();
    note_torn(at, std::move(problem_));
    add(entry_->dropped_bytes, restart_at_ - at);
    reader_.pass_over(restart_at_);
    note_cursor();
    blocked_ = false;
    return Feed::torn;
}

void LaneFeed::note_torn(std::uint64_t position, std::string why) {
    torn_of_earlier_ = is_spill_ || position < restart_at_;
    problem_ = std::move(why);
    add(entry_->torn, std::uint64_t{1});
}

LaneFeed::Feed LaneFeed::quarantine(Quarantine reason, std::string why) {
    quarantined_ = true;
    torn_of_earlier_ = false;
    problem_ = std::move(why);
    publish(entry_->quarantine, static_cast<std::uint32_t>(reason));
    return Feed::quarantined;
}

// What a predecessor released out of order is passed over by the reader, and is no gap.
void LaneFeed::learn_of_passed() {
    const Frame& passed = reader_.passed();
    if (passed.bytes == 0 || passed.epoch < last_epoch_ || !of_its_time(passed)) return;
    const std::uint64_t next = passed.sequence + 1;
    note_groups(passed);
    next_sequence_ = passed.epoch == last_epoch_ ? std::max(next_sequence_, next) : next;
    last_epoch_ = passed.epoch;
}

// The sequence of the epoch's next record. Unknown if we have seen no record since we came: a
// predecessor may have read and released any number of them. From the first one on we see all.
std::optional<std::uint64_t> LaneFeed::expected(std::uint32_t epoch) const {
    if (last_epoch_ == epoch) return next_sequence_;
    if (last_epoch_ != 0 || whole_epoch_ == epoch) return 0;
    return std::nullopt;
}

// Whether a frame of that epoch can lie there.
bool LaneFeed::of_its_time(const Frame& frame) const {
    if (frame.position < restart_at_) return frame.epoch <= restart_epoch_;
    return frame.epoch == epoch_;
}

// Sequences grow by one per epoch. False if the frame claims what cannot be.
bool LaneFeed::in_sequence(const Frame& frame) {
    if (is_spill_) {
        next_sequence_ = frame.sequence;
        return frame.lane < lane_;  // the lanes come before the spill
    }
    if (frame.lane != lane_ || !of_its_time(frame)) return false;
    learn_of_passed();
    if (frame.epoch < last_epoch_) return false;
    next_sequence_ = expected(frame.epoch).value_or(frame.sequence);
    last_epoch_ = frame.epoch;
    // Gaps in front of what a predecessor has delivered were counted by it.
    if (frame.sequence > next_sequence_ && frame.position >= delivered_at_attach_) {
        add(entry_->lost, frame.sequence - next_sequence_);
    }
    return true;
}

LaneFeed::Feed LaneFeed::next(Record& record, const Schema& schema) {
    if (quarantined_) return Feed::empty;
    if (blocked_) return pass_damage();
    // What a predecessor delivered and did not release comes again; then the damage it found.
    if (found_damaged_ != Quarantine::none && reader_.read_position() >= delivered_at_attach_) {
        return quarantine(found_damaged_, "an earlier consumer found it damaged");
    }
    Frame frame;
    int repeated = 0;
    for (;;) {
        switch (reader_.poll(frame)) {
            case LanePoll::record:
                break;
            case LanePoll::empty:
                noted_tail_ = 0;  // whatever the tail said
                return Feed::empty;
            case LanePoll::bad_tail:
                return quarantine(Quarantine::bad_tail, "its tail is impossible");
            case LanePoll::bad_frame:
                return damaged(reader_.read_position(), Quarantine::bad_frame,
                               fmt::format("no frame at position {}", reader_.read_position()));
        }
        const Span span{frame.position, frame.bytes};
        if (!in_sequence(frame)) {
            return damaged(frame.position, Quarantine::bad_sequence,
                           fmt::format("the frame at position {} claims lane {} epoch {}",
                                       frame.position, frame.lane, frame.epoch));
        }
        if (frame.sequence < next_sequence_) {
            add(entry_->duplicates, std::uint64_t{1});
            give_up(span, 1);
            if (++repeated < duplicates_max) continue;
            return Feed::empty;
        }
        next_sequence_ = frame.sequence + 1;
        prefetch_ahead(frame.bytes);
        const std::byte* payload = data_ + size_.offset(frame.position) + line_bytes;
        const auto problem = record.view.parse({payload, frame.payload_bytes}, schema);
        if (!problem.empty()) {
            note_torn(frame.position, fmt::format("sequence {}: {}", frame.sequence, problem));
            give_up(span, 1);
            return Feed::torn;
        }
        if (record.view.run_id() != ring_id_) {
            return damaged(frame.position, Quarantine::bad_sequence,
                           fmt::format("the record at position {} was written for another ring",
                                       frame.position));
        }
        record.ref = {frame.position, lane_, static_cast<std::uint32_t>(frame.bytes / line_bytes)};
        record.producer_lane = frame.lane;
        record.producer_epoch = frame.epoch;
        record.sequence = frame.sequence;
        record.committed_ns = frame.committed_ns;
        record.redelivered = frame.position < delivered_at_attach_;
        FAULT_POINT("poll.before_account");
        if (!record.redelivered) poke(entry_->delivered, reader_.read_position());
        is_spill_ ? note_largest(frame.bytes) : note_groups(frame);
        note_delivered(frame.bytes);
        add(entry_->records, std::uint64_t{record.redelivered ? 0U : 1U});
        add(entry_->redelivered, std::uint64_t{record.redelivered ? 1U : 0U});
        add(entry_->tokens, std::uint64_t{record.view.n_tokens()});
        add(entry_->bytes, frame.bytes);
        epoch_records_++;
        return Feed::record;
    }
}

// Under a backlog the first lines of the records to come are out of cache: they are fetched while
// this one is dealt with, of the one after the next two if those are as long as this one: one
// record ahead is too late for a short one. What is not committed yet is left alone, for its
// producer is writing it.
void LaneFeed::prefetch_ahead(std::uint64_t bytes) const {
    const std::uint64_t at = reader_.read_position() + 2 * bytes;
    if (reader_.known_tail() < at + prefetch_lines * line_bytes) return;
    const std::uint64_t offset = size_.offset(at);
    if (size_.bytes() - offset < prefetch_lines * line_bytes) return;
    for (std::uint64_t i = 0; i < prefetch_lines; i++) {
        prefetch_to_read(data_ + offset + i * line_bytes);
    }
}

bool LaneFeed::oldest(RecordRef& ref, Frame& frame) const {
    const std::uint64_t at = reader_.cursor();
    if (at == reader_.read_position()) return false;
    const std::uint64_t offset = size_.offset(at);
    frame = load_once<Frame>(data_ + offset);
    ref = {at, lane_, static_cast<std::uint32_t>(frame.bytes / line_bytes)};
    return frame.magic == frame_magic && frame.position == at && frame.bytes % line_bytes == 0 &&
           frame.kind == static_cast<std::uint16_t>(FrameKind::record) &&
           frame.bytes >= line_bytes && frame.bytes <= size_.bytes() - offset &&
           frame.bytes <= reader_.read_position() - at &&
           frame.payload_bytes <= frame.bytes - line_bytes;
}

bool LaneFeed::frame_at(std::uint64_t position, Frame& frame) const {
    if (position % line_bytes != 0 || !reader_.covers({position, line_bytes})) return false;
    frame = load_once<Frame>(data_ + size_.offset(position));
    return frame.magic == frame_magic && frame.position == position &&
           reader_.covers({position, frame.bytes});
}

bool LaneFeed::undelivered(std::uint64_t position, RecordRef& ref, Frame& frame) const {
    if (position < reader_.read_position() || !frame_at(position, frame)) return false;
    ref = {position, lane_, static_cast<std::uint32_t>(frame.bytes / line_bytes)};
    return frame.kind == static_cast<std::uint16_t>(FrameKind::record) &&
           !reader_.is_released(position);
}

void LaneFeed::pass_written(const Span& span) {
    const bool followed = reader_.follow(span);
    ROLLRING_ASSERT(followed, fmt::format("more skips than can be before {}", span.position));
    if (span.bytes == 0) return;
    note_largest(span.bytes);
    note_delivered(span.bytes);
}

bool LaneFeed::closed() const {
    return observe(owner_->state) == static_cast<std::uint32_t>(OwnerState::closed);
}

bool LaneFeed::ended(const RingMap& map) const {
    return closed() || !map.producer_alive(lane_);
}

bool LaneFeed::drained() const {
    if (found_damaged_ != Quarantine::none && !quarantined_) return false;  // next() will tell
    return quarantined_ ? reader_.held_bytes() == 0 : reader_.drained();
}

Event LaneFeed::event(Event::Kind kind) const {
    if (!torn_of_earlier_) {
        return {kind, lane_, epoch_, load_name(*owner_), epoch_records_, problem_};
    }
    if (kind != Event::Kind::torn) {
        return {kind, lane_, epoch_, load_name(*owner_), epoch_records_, {}};
    }
    return {kind, lane_, 0, {}, 0, problem_ + ": left by an earlier producer of the lane"};
}

Event LaneFeed::retire(const RingMap& map) {
    const bool normal = closed();
    Event happened = event(normal ? Event::Kind::producer_closed : Event::Kind::producer_lost);
    const bool given_up = quarantined_;
    if (quarantined_) start_over();
    publish(entry_->quarantine, static_cast<std::uint32_t>(Quarantine::none));  // by nobody else
    // Counted by the producer after the tail that covers them: never more than it has sent.
    learn_of_passed();
    if (const auto next = expected(epoch_); next && !given_up && peek(owner_->records) > *next) {
        add(entry_->lost, peek(owner_->records) - *next);
    }
    add(normal ? entry_->producers_closed : entry_->producers_lost, std::uint64_t{1});
    if (normal && reader_.held_bytes() == 0) {
        const Geometry& geometry = map.geometry();
        map.segment().give_back(geometry.bits_offset(lane_), geometry.stride(lane_));
        FAULT_POINT("retire.after_give_back");
    }
    // What it announced and never sent is not awaited.
    groups_read_ = peek(owner_->groups_opened);
    lines_read_ = peek(owner_->lines_claimed);
    poke(entry_->lines_arrived, lines_read_);
    poke(entry_->groups_arrived, groups_read_);
    groups_told_ = groups_read_;
    lines_told_ = lines_read_;
    active_ = false;
    problem_.clear();
    restart_epoch_ = epoch_;
    publish(entry_->restart_epoch, restart_epoch_);
    FAULT_POINT("retire.after_restart");
    restart_at_ = reader_.read_position();
    reader_.stop(restart_at_);
    publish(entry_->restart_at, restart_at_);
    FAULT_POINT("retire.before_epoch");
    publish(entry_->retired_epoch, epoch_);
    return happened;
}

}  // namespace rollring
