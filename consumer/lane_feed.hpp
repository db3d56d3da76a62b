#pragma once
// One lane as the consumer sees it: the lock-free reader, and the checks of the producer, of the
// order and of the contents of its records. The spill is such a lane, too: its records keep the
// identity from their original lane, and all of them were delivered before.

#include <cstdint>
#include <string>
#include <string_view>

#include "epoch_book.hpp"
#include "lane_claims.hpp"
#include "lane_damage.hpp"
#include "lane_holdings.hpp"
#include "ring_map.hpp"
#include "rollring/consumer.hpp"

namespace rollring {

class LaneFeed {
  public:
    enum class [[nodiscard]] Feed { record, empty, torn, quarantined };

    // `lane` has a producer that is not retired, or is the spill. Maps its released-bits writable.
    // `all_ours`: its producer came after this consumer, so no predecessor has read its records.
    static Result<LaneFeed> open(const RingMap& map, const Mapping& segment,
                                 const Mapping& reader_pages, std::uint32_t lane, bool all_ours);

    // The next record. With `torn` it was dropped and counted; with `quarantined` the lane stays
    // silent until its producer is gone, and problem() has the reason.
    Feed next(Record& record, const Schema& schema);

    // Whether next() would do nothing. A poll that finds nothing asks every lane, so this call
    // reads little memory.
    [[nodiscard]] bool idle() const {
        return reader_.drained() && !blocked() && damage_.found() == Quarantine::none &&
               claims_.groups_are_told() && noted_was_read(true);
    }

    void release(const Span& span) {
        reader_.release(span);
        note_given_back(1, span.bytes);
    }
    // For the journal: marks each record, and advances when all are marked.
    void mark(const Span& span) { reader_.mark(span); }
    void advance(std::uint64_t released, std::uint64_t bytes) {
        reader_.advance();
        note_given_back(released, bytes);
    }

    // The groups that this lane has announced; the owner decides when they count as arrived.
    [[nodiscard]] LaneClaims& claims() { return claims_; }
    void tell_released_claims() { claims_.tell_below(reader_.cursor()); }

    // The record at the cursor: delivered, and the oldest unreleased one. False if there is none,
    // or if its frame was damaged since.
    bool oldest(RecordRef& ref, Frame& frame) const;
    // Bytes of records delivered since the oldest record became the oldest.
    [[nodiscard]] std::uint64_t delivered_since_oldest() const {
        return holdings_.delivered_since_oldest();
    }
    [[nodiscard]] std::uint64_t unreleased_bytes() const { return holdings_.unreleased_bytes(); }
    [[nodiscard]] std::uint64_t oldest_position() const { return reader_.cursor(); }
    // Of the spill, when it is opened: the end of a predecessor's records.
    [[nodiscard]] std::uint64_t restart_at() const { return book_.restart_at(); }
    [[nodiscard]] std::uint64_t pinned_bytes() const { return reader_.held_bytes(); }
    // The frame of a record that a predecessor delivered and no consumer released, before its next
    // delivery. False if there is none at that position.
    bool undelivered(std::uint64_t position, RecordRef& ref, Frame& frame) const;
    [[nodiscard]] bool delivered(const Span& span) const { return reader_.delivered(span); }
    // A checked frame at a position from the cursor up to the tail as it was when this object was
    // opened. False from that tail on.
    bool frame_at(std::uint64_t position, Frame& frame) const;
    // Whether every record below the noted tail was read. A quarantined lane counts as read,
    // because it delivers no more; so does a blocked one unless `patient`.
    void note_tail() { noted_tail_ = observe(owner_->tail); }
    [[nodiscard]] bool noted_was_read(bool patient) const {
        return (blocked() && !patient) || quarantined() || reader_.read_position() >= noted_tail_;
    }
    // Of the spill: passes over a record that we have just written there or, if the span is empty,
    // over skips.
    void pass_written(const Span& span);
    [[nodiscard]] bool is_spill() const { return is_spill_; }
    [[nodiscard]] std::uint64_t capacity_bytes() const { return size_.bytes(); }
    // Of the spill: the largest record since it was last empty.
    [[nodiscard]] std::uint64_t largest_bytes() const { return holdings_.largest_bytes(); }

    // Repairs overwritten words; to be called from time to time (see the definition).
    [[nodiscard]] bool show_again();

    // Begins the epoch of a producer that has taken the lane since.
    void begin_epoch();
    // Whether its producer is gone for good: closed, or proven dead. Ask this before drained().
    [[nodiscard]] bool ended(const RingMap& map) const;
    // Nothing is left to deliver or, in a quarantined lane, nothing is held.
    [[nodiscard]] bool drained() const;
    // Hands the lane back. Returns the event to report.
    Event retire(const RingMap& map);

    [[nodiscard]] std::uint32_t lane() const { return lane_; }
    [[nodiscard]] std::uint32_t epoch() const { return book_.epoch(); }
    [[nodiscard]] bool active() const { return active_; }
    [[nodiscard]] bool quarantined() const { return damage_.quarantined(); }
    // The next bytes are damage that an earlier producer left: the lane is silent until every
    // record that it has delivered is released or evacuated.
    [[nodiscard]] bool blocked() const { return damage_.blocked(); }
    [[nodiscard]] const std::string& problem() const { return damage_.problem(); }
    [[nodiscard]] std::uint64_t read_position() const { return reader_.read_position(); }
    // After a change of the head, ring the producer's bell. next() moves the head too, over skips.
    [[nodiscard]] std::uint64_t head() const { return reader_.head(); }
    [[nodiscard]] const ReaderEntry& entry() const { return *entry_; }
    [[nodiscard]] bool covers(const Span& span) const { return reader_.covers(span); }
    [[nodiscard]] Event event(Event::Kind kind) const;

  private:
    [[nodiscard]] RecordRef ref_to(const Frame& frame) const {
        return {frame.position, lane_, static_cast<std::uint32_t>(frame.bytes / line_bytes)};
    }
    LaneFeed(std::uint32_t lane, NativeReader reader, Mapping bits, const std::byte* data,
             const LaneOwner& owner, ReaderEntry& entry);
    void recover(bool sound);
    Result<void> mend(const RingMap& map);
    void start_over();
    // Releases records that were never delivered.
    void give_up(const Span& span, std::uint64_t records) {
        reader_.release(span);
        note_given_back(records, 0);
    }
    void note_given_back(std::uint64_t records, std::uint64_t bytes) {
        add(entry_->released, records);
        holdings_.give_back(bytes, reader_.cursor());
    }
    void note_torn(std::uint64_t position, std::string why) {
        damage_.torn(is_spill_ || position < restart_at(), std::move(why));
    }
    Feed damaged(const Span& span, Quarantine reason, std::string why);
    Feed pass_damage();
    Feed give_up_torn(const Span& span, std::string why);
    Feed quarantine(Quarantine reason, std::string why);
    [[nodiscard]] EpochBook::Turn turn_of(const Frame& frame);
    void learn_of_passed();

    std::uint32_t lane_;
    NativeReader reader_;
    Mapping bits_;
    const std::byte* data_;
    const LaneOwner* owner_;
    ReaderEntry* entry_;
    LaneSize size_;
    bool is_spill_ = false;
    std::uint64_t ring_id_ = 0;
    LaneHoldings holdings_;
    LaneClaims claims_;
    EpochBook book_;
    LaneDamage damage_;
    std::uint64_t noted_tail_ = 0;
    bool active_ = false;
    std::uint64_t delivered_at_attach_ = 0;  // records below this are redelivered
};

}  // namespace rollring
