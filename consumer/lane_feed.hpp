#pragma once
// One lane as the consumer sees it: the lock-free reader, plus who writes, in which order, and
// whether what arrives can be believed. The spill is one too: its records keep the identity that
// they had in the lane where they came from, and have all been delivered once.

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
    // `all_ours`: its producer came when we had the seat, so no predecessor has read its records.
    static Result<LaneFeed> open(const RingMap& map, const Mapping& segment,
                                 const Mapping& reader_pages, std::uint32_t lane, bool all_ours);

    // The next record. After `torn` it has been dropped and counted, after `quarantined` the lane
    // stays silent until its producer is gone; problem() says why.
    Feed next(Record& record, const Schema& schema);

    // Nothing new, and next() would do nothing: asked of each lane with each poll that finds
    // nothing, so it reads little.
    [[nodiscard]] bool idle() const {
        return reader_.drained() && !blocked() && damage_.found() == Quarantine::none &&
               claims_.groups_are_told() && noted_was_read(true);
    }

    void release(const Span& span) {
        reader_.release(span);
        note_given_back(1, span.bytes);
    }
    // For the journal: marks, and advances when all are marked.
    void mark(const Span& span) { reader_.mark(span); }
    void advance(std::uint64_t released, std::uint64_t bytes) {
        reader_.advance();
        note_given_back(released, bytes);
    }

    // What this lane announced for groups: when that has arrived, whoever polls says.
    [[nodiscard]] LaneClaims& claims() { return claims_; }
    void tell_released_claims() { claims_.tell_below(reader_.cursor()); }

    // The record at the cursor: delivered, and the oldest that is not released. False if there is
    // none, or its frame has been damaged since.
    bool oldest(RecordRef& ref, Frame& frame) const;
    // Bytes of records delivered since the oldest became the oldest.
    [[nodiscard]] std::uint64_t delivered_since_oldest() const {
        return holdings_.delivered_since_oldest();
    }
    [[nodiscard]] std::uint64_t unreleased_bytes() const { return holdings_.unreleased_bytes(); }
    [[nodiscard]] std::uint64_t oldest_position() const { return reader_.cursor(); }
    // Of the spill, when it is opened: the end of what a predecessor left there.
    [[nodiscard]] std::uint64_t restart_at() const { return book_.restart_at(); }
    [[nodiscard]] std::uint64_t pinned_bytes() const { return reader_.held_bytes(); }
    // The frame of a record that a predecessor delivered and nobody has released, before it is
    // delivered again. False if there is none at that position.
    bool undelivered(std::uint64_t position, RecordRef& ref, Frame& frame) const;
    [[nodiscard]] bool delivered(const Span& span) const { return reader_.delivered(span); }
    // A frame between the cursor and what was committed when we came, checked. False behind it.
    bool frame_at(std::uint64_t position, Frame& frame) const;
    // Whether all has been read that was committed when the tail was noted. Of a quarantined lane
    // nothing will be; nor, for who is not `patient`, of one that is blocked.
    void note_tail() { noted_tail_ = observe(owner_->tail); }
    [[nodiscard]] bool noted_was_read(bool patient) const {
        return (blocked() && !patient) || quarantined() || reader_.read_position() >= noted_tail_;
    }
    // The spill: passes over what we have just written there ourselves: a record, no bytes: skips.
    void pass_written(const Span& span);
    [[nodiscard]] bool is_spill() const { return is_spill_; }
    [[nodiscard]] std::uint64_t capacity_bytes() const { return size_.bytes(); }
    // Of the spill: of any record since it was empty last.
    [[nodiscard]] std::uint64_t largest_bytes() const { return holdings_.largest_bytes(); }

    // Now and then: see there.
    [[nodiscard]] bool show_again();

    // A producer has taken the lane anew.
    void begin_epoch();
    // Whether its producer is gone for good: closed, or proven dead. Ask before drained().
    [[nodiscard]] bool ended(const RingMap& map) const;
    // Nothing left to deliver; a quarantined lane: nothing left that is held.
    [[nodiscard]] bool drained() const;
    // Hands the lane back. Returns what happened, for the event.
    Event retire(const RingMap& map);

    [[nodiscard]] std::uint32_t lane() const { return lane_; }
    [[nodiscard]] std::uint32_t epoch() const { return book_.epoch(); }
    [[nodiscard]] bool active() const { return active_; }
    [[nodiscard]] bool quarantined() const { return damage_.quarantined(); }
    // Damage that an earlier producer left comes next: nothing more until what was delivered from
    // this lane is released or evacuated.
    [[nodiscard]] bool blocked() const { return damage_.blocked(); }
    [[nodiscard]] const std::string& problem() const { return damage_.problem(); }
    [[nodiscard]] std::uint64_t read_position() const { return reader_.read_position(); }
    // Ring the producer's bell when it has moved; next() moves it too, over skips.
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
    // Never delivered.
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
    std::uint64_t delivered_at_attach_ = 0;  // below it records are redelivered
};

}  // namespace rollring
