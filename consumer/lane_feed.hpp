#pragma once
// One lane as the consumer sees it: the lock-free reader, plus who writes, in which order, and
// whether what arrives can be believed. The spill is one too: its records keep the identity that
// they had in the lane where they came from, and have all been delivered once.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ring_map.hpp"
#include "rollring/consumer.hpp"

namespace rollring {

inline constexpr std::uint64_t prefetch_lines = 7;  // frame, header, directory, instance_id

class LaneFeed {
  public:
    enum class [[nodiscard]] Feed { record, empty, torn, quarantined };

    // `lane` has a producer that is not retired, or is the spill. Maps its released-bits writable.
    // `all_ours`: its producer came when we had the seat, so no predecessor has read its records.
    static Result<LaneFeed> open(const RingMap& map, const Mapping& segment,
                                 const Mapping& reader_pages, std::uint32_t lane, bool all_ours);

    // The next record. After `torn` it has been dropped and counted, after `quarantined` the lane
    // stays silent until its producer is gone; problem() says why.
    Feed next(Record& record, const Schema& schema);

    // Nothing new, and next() would do nothing: asked of each lane with each poll that finds
    // nothing, so it reads little.
    [[nodiscard]] bool idle() const {
        return reader_.drained() && !blocked_ && found_damaged_ == Quarantine::none &&
               groups_told_ == groups_read_ && noted_was_read(true);
    }

    void release(const Span& span) {
        reader_.release(span);
        note_given_back(1, span.bytes);
    }
    // For the journal: marks, and settles when all are marked.
    void mark(const Span& span) { reader_.mark(span); }
    void settle(std::uint64_t released, std::uint64_t bytes) {
        reader_.settle();
        note_given_back(released, bytes);
    }

    // Groups that this lane announced, and whose first record has been read, count as arrived from
    // now on; called when they have been counted as open.
    void publish_groups() {
        if (groups_told_ == groups_read_ && lines_told_ == lines_read_) return;
        groups_told_ = groups_read_;
        lines_told_ = lines_read_;
        publish(entry_->lines_arrived, lines_told_);
        publish(entry_->groups_arrived, groups_told_);
    }

    // The record at the cursor: delivered, and the oldest that is not released. False if there is
    // none, or its frame has been damaged since.
    bool oldest(RecordRef& ref, Frame& frame) const;
    // Bytes of records delivered since the oldest became the oldest.
    [[nodiscard]] std::uint64_t delivered_since_oldest() const {
        return delivered_bytes_ - delivered_at_oldest_;
    }
    [[nodiscard]] std::uint64_t unreleased_bytes() const { return unreleased_bytes_; }
    [[nodiscard]] std::uint64_t oldest_position() const { return reader_.cursor(); }
    // Of the spill, when it is opened: the end of what a predecessor left there.
    [[nodiscard]] std::uint64_t restart_at() const { return restart_at_; }
    [[nodiscard]] std::uint64_t pinned_bytes() const { return reader_.held_bytes(); }
    // The frame of a record that a predecessor delivered and nobody has released, before it is
    // delivered again. False if there is none at that position.
    bool undelivered(std::uint64_t position, RecordRef& ref, Frame& frame) const;
    // Whether a span lies where delivered records can be that are not released. Where released-bits
    // were written over, the cursor may stand within a record that is still to be given back.
    [[nodiscard]] bool delivered(const Span& span) const {
        return span.position < reader_.read_position() &&
               span.bytes <= reader_.read_position() - span.position &&
               span.position + span.bytes > reader_.cursor();
    }
    // A frame between the cursor and what was committed when we came, checked. False behind it.
    bool frame_at(std::uint64_t position, Frame& frame) const;
    // Whether all has been read that was committed when the tail was noted. Of a quarantined lane
    // nothing will be; nor, for who is not `patient`, of one that is blocked.
    void note_tail() { noted_tail_ = observe(owner_->tail); }
    [[nodiscard]] bool noted_was_read(bool patient) const {
        return (blocked_ && !patient) || quarantined_ || reader_.read_position() >= noted_tail_;
    }
    // The spill: passes over what we have just written there ourselves: a record, no bytes: skips.
    void pass_written(const Span& span);
    [[nodiscard]] bool is_spill() const { return is_spill_; }
    [[nodiscard]] std::uint64_t capacity_bytes() const { return size_.bytes(); }
    // Of the spill: of any record since it was empty last.
    [[nodiscard]] std::uint64_t largest_bytes() const { return largest_bytes_; }

    // Now and then: see there.
    [[nodiscard]] bool show_again();

    // A producer has taken the lane anew.
    void begin_epoch();
    // Whether its producer is gone for good: closed, or proven dead. Ask before drained().
    [[nodiscard]] bool ended(const RingMap& map) const;
    [[nodiscard]] bool closed() const;
    // Nothing left to deliver; a quarantined lane: nothing left that is held.
    [[nodiscard]] bool drained() const;
    // Hands the lane back. Returns what happened, for the event.
    Event retire(const RingMap& map);

    [[nodiscard]] std::uint32_t lane() const { return lane_; }
    [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
    [[nodiscard]] bool active() const { return active_; }
    [[nodiscard]] bool quarantined() const { return quarantined_; }
    // Damage that an earlier producer left comes next: nothing more until what was delivered from
    // this lane is released or evacuated.
    [[nodiscard]] bool blocked() const { return blocked_; }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] std::uint64_t read_position() const { return reader_.read_position(); }
    // Ring the producer's bell when it has moved; next() moves it too, over skips.
    [[nodiscard]] std::uint64_t head() const { return reader_.head(); }
    [[nodiscard]] const ReaderEntry& entry() const { return *entry_; }
    [[nodiscard]] bool covers(const Span& span) const { return reader_.covers(span); }
    [[nodiscard]] Event event(Event::Kind kind) const;

  private:
    LaneFeed(std::uint32_t lane, NativeReader reader, Mapping bits, const std::byte* data,
             const LaneOwner& owner, ReaderEntry& entry);
    void recover(bool sound);
    Result<void> mend(const RingMap& map);
    void start_over();
    // Never delivered.
    void give_up(const Span& span, std::uint64_t records) {
        reader_.release(span);
        note_given_back(records, 0);
    }
    void note_delivered(std::uint64_t bytes) {
        note_cursor();
        unreleased_bytes_ += bytes;
        delivered_bytes_ += bytes;
    }
    void note_given_back(std::uint64_t records, std::uint64_t bytes) {
        add(entry_->released, records);
        unreleased_bytes_ -= bytes;
        note_cursor();
    }
    // What is delivered again was counted before. Of what is new the producer knows best: where it
    // began is what our entry said, which may have been written over by then.
    void note_groups(const Frame& frame) {
        const auto more = static_cast<std::int32_t>(frame.groups_opened -
                                                    static_cast<std::uint32_t>(groups_read_));
        if (more <= 0 && frame.position < delivered_at_attach_) return;
        groups_read_ += static_cast<std::uint64_t>(std::int64_t{more});
        lines_read_ = frame.lines_claimed;
    }
    void note_largest(std::uint64_t bytes) {
        largest_bytes_ = std::max(unreleased_bytes_ == 0 ? 0 : largest_bytes_, bytes);
    }
    void note_cursor() {
        if (reader_.cursor() == oldest_position_) return;
        oldest_position_ = reader_.cursor();
        delivered_at_oldest_ = delivered_bytes_;
    }
    void note_torn(std::uint64_t position, std::string why);
    Feed damaged(std::uint64_t position, Quarantine reason, std::string why);
    Feed pass_damage();
    Feed quarantine(Quarantine reason, std::string why);
    [[nodiscard]] bool of_its_time(const Frame& frame) const;
    bool in_sequence(const Frame& frame);
    void learn_of_passed();
    void prefetch_ahead(std::uint64_t bytes) const;
    [[nodiscard]] std::optional<std::uint64_t> expected(std::uint32_t epoch) const;

    std::uint32_t lane_;
    NativeReader reader_;
    Mapping bits_;
    const std::byte* data_;
    const LaneOwner* owner_;
    ReaderEntry* entry_;
    LaneSize size_;
    bool is_spill_ = false;
    std::uint64_t ring_id_ = 0;
    std::uint64_t unreleased_bytes_ = 0;
    std::uint64_t largest_bytes_ = 0;
    std::uint64_t delivered_bytes_ = 0;
    std::uint64_t delivered_at_oldest_ = 0;
    std::uint64_t oldest_position_ = 0;
    std::uint64_t groups_read_ = 0;
    std::uint64_t noted_tail_ = 0;
    std::uint64_t groups_told_ = 0;
    std::uint32_t lines_read_ = 0;
    std::uint32_t lines_told_ = 0;
    // The entry's, as they were when we came and as we have set them since.
    std::uint64_t restart_at_ = 0;
    std::uint32_t restart_epoch_ = 0;
    std::uint32_t epoch_ = 0;
    bool active_ = false;
    bool quarantined_ = false;
    bool blocked_ = false;
    bool torn_of_earlier_ = false;
    std::uint64_t delivered_at_attach_ = 0;        // below it records are redelivered
    Quarantine found_damaged_ = Quarantine::none;  // by a predecessor, in this epoch
    std::uint32_t whole_epoch_ = 0;                // all records of this one come to us
    std::uint32_t last_epoch_ = 0;     // of the last record that came or was passed; 0: none yet
    std::uint64_t next_sequence_ = 0;  // after it
    std::uint64_t epoch_records_ = 0;
    std::string problem_;
};

}  // namespace rollring
