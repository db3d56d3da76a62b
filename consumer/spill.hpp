#pragma once
// The spill: one lane more, which the consumer writes and reads. Records of groups that stay
// incomplete while their lane fills up are copied here, so that they pin a bounded memory of their
// own and not the lane. Old ones are copied to its end again when they pin the spill (compaction).
//
// A move is one event: the copy lies behind the spill's tail, unseen, until a journal entry says
// "tail := t, release the original". A consumer killed before that entry has not moved the record;
// after it, its successor finishes the move. There are never two of it.

#include <cstdint>
#include <optional>

#include "journal.hpp"
#include "lane_feed.hpp"
#include "ring_map.hpp"

namespace rollring {

class Spill {
  public:
    // Errc::not_enough_shared_memory if it does not fit.
    static Result<void> reserve(const RingMap& map);
    // What reserve() took, if nothing was ever written there: for an open that fails.
    static void give_back(const RingMap& map);
    // Reserves and maps the spill.
    static Result<Spill> open(const RingMap& map);

    // Finishes a move that a predecessor had in its journal. Before any lane is recovered.
    static Result<void> recover(const RingMap& map, ReaderControl& control);

    // A record at its feed's cursor (LaneFeed::oldest).
    struct Straggler {
        RecordRef ref;
        Frame frame;
        const std::byte* bytes;  // from its frame on
        LaneFeed* feed;
    };
    // Moves it: copies it, releases it where it was. Where it is now; nothing if the spill has no
    // room. `own` is the spill's feed, and may be the straggler's.
    std::optional<RecordRef> move(const Straggler& straggler, LaneFeed& own, ReaderControl& control,
                                  Journal<NativePlatform> journal);

  private:
    [[nodiscard]] bool leaves_room(std::uint64_t bytes, const LaneFeed& own) const;
    Spill(Mapping owner_page, Mapping data, const Geometry& geometry, const ReaderEntry& entry);
    Mapping owner_page_;
    Mapping data_;
    std::uint32_t lane_;
    NativeWriter writer_;
};

}  // namespace rollring
