#pragma once
// The spill: an additional lane, which the consumer writes and reads. Records of groups that stay
// incomplete while their lane fills up are copied here, so that they pin a bounded memory of their
// own instead of the lane. Old ones are copied to its end again when they pin the spill
// (compaction).
//
// A move is one event: the copy lies behind the spill's tail, invisible, until a journal entry says
// "tail := t, release the original". If a consumer is killed before that entry, the record has not
// moved; after it, the successor finishes the move. The record never exists twice.
//
// The spill's memory is reserved from its start on, as needed: `reserved_bytes` of `capacity`.
// Behind its memory it continues in the overflow file, if the ring has one (overflow.hpp).

#include <cstdint>
#include <optional>
#include <string>

#include "lane_feed.hpp"
#include "overflow.hpp"
#include "ring_journal.hpp"
#include "ring_map.hpp"

namespace rollring {

class Spill {
  public:
    // Reserves its first part, or as much as a predecessor had; Errc::not_enough_shared_memory if
    // that does not fit. `overflow`: the ring's file; null: it has none.
    static Result<void> reserve_first(const RingMap& map, const ReaderControl& control,
                                      Overflow* overflow);
    // Returns the memory of reserve_first() if nothing was ever written there, for an open that
    // fails.
    static void give_back(const RingMap& map);
    // Maps the spill, and reserves its first part. `overflow` must outlive it. Call
    // set_spill_tail() before.
    static Result<Spill> open(const RingMap& map, ReaderControl& control, Overflow* overflow);
    // A record at its feed's cursor (LaneFeed::oldest).
    struct Straggler {
        RecordRef ref;
        Frame frame;
        const std::byte* bytes;  // from its frame on
        LaneFeed* feed;
    };
    // Moves the record: copies it and releases the original. Returns the copy; empty if the spill
    // has no room. `own` is the spill's feed, and may be the straggler's.
    std::optional<RecordRef> move(const Straggler& straggler, LaneFeed& own, RingJournal& journal);

    // Reserves memory until this much is usable, or all of it is reserved. False if too little is
    // usable: grow_error() may say why, and the next attempt is a second later.
    bool grow(std::uint64_t usable_bytes, const RingMap& map, std::int64_t now_ns) {
        return grow_to(usable_bytes, most_bytes(), map, now_ns);
    }
    // The same without the overflow file, for needs that can wait.
    bool grow_in_memory(std::uint64_t usable_bytes, const RingMap& map, std::int64_t now_ns) {
        return grow_to(usable_bytes, memory_bytes(), map, now_ns);
    }
    // The same for room that no producer waits for yet. A refusal delays no other growth, and ends
    // these attempts: other programs may need the rest of the memory.
    void grow_ahead(std::uint64_t usable_bytes, const RingMap& map, std::int64_t now_ns);
    [[nodiscard]] const std::string& grow_error() const { return grow_error_; }

    // Bytes of the records in the spill, as of the last move() or note_live().
    [[nodiscard]] std::uint64_t live_bytes() const { return live_bytes_; }
    void note_live(const LaneFeed& own);
    // From the oldest record to the end, with the dead bytes between.
    [[nodiscard]] std::uint64_t occupied_bytes(const LaneFeed& own) const {
        return writer_.written_since(own.head());
    }
    [[nodiscard]] std::uint64_t reserved_bytes() const { return reserved_bytes_; }
    // The bytes that it may hold so that compaction always finds room: of the reserved ones, and of
    // all that it can reserve.
    [[nodiscard]] std::uint64_t usable_bytes() const { return usable_of(reserved_bytes_); }
    // The most that it can ever hold, live and dead.
    [[nodiscard]] std::uint64_t most_bytes() const {
        return overflows() ? capacity_bytes_ : memory_bytes();
    }
    [[nodiscard]] std::uint64_t usable_most_bytes() const { return usable_of(most_bytes()); }
    // The overflow file, which may hold a part of the spill; null: the ring has none.
    [[nodiscard]] const Overflow* overflow() const { return overflow_; }

  private:
    Spill(Mapping owner_page, Mapping data, const Geometry& geometry, const ReaderEntry& entry,
          ReaderControl& control, Overflow* overflow);
    [[nodiscard]] bool leaves_room(std::uint64_t bytes, const LaneFeed& own) const;
    [[nodiscard]] std::uint64_t usable_of(std::uint64_t bytes) const;
    [[nodiscard]] bool overflows() const { return overflow_ != nullptr && overflow_->usable(); }
    [[nodiscard]] std::uint64_t memory_bytes() const {
        return overflow_ != nullptr ? overflow_->begin() : memory_bytes_;
    }
    struct Part {
        std::uint64_t from;
        std::uint64_t to;
    };
    static Result<void> reserve(const Part& part, const RingMap& map, const Overflow* overflow);
    bool grow_to(std::uint64_t usable_bytes, std::uint64_t most, const RingMap& map,
                 std::int64_t now_ns);
    Result<void> add_part(std::uint64_t least, std::uint64_t wanted, std::uint64_t most,
                          const RingMap& map);
    void use(std::uint64_t bytes);
    void find_lap_end();

    Mapping owner_page_;
    Mapping data_;
    std::uint32_t lane_;
    std::uint64_t capacity_bytes_;  // of the lane
    std::uint64_t memory_bytes_;    // its limit in memory
    ReaderControl* control_;
    Overflow* overflow_;
    NativeWriter writer_;
    std::uint64_t reserved_bytes_ = 0;
    std::uint64_t live_bytes_ = 0;
    std::uint64_t largest_bytes_ = 0;  // the longest record since it was last empty
    std::int64_t refused_ns_ = 0;      // when the system refused memory
    bool ahead_refused_ = false;
    std::string grow_error_;
};

}  // namespace rollring
