#pragma once
// The journal of a ring, and the words that are committed along with it: a release of many records
// may end groups, whose tombstones count from its commit on, and a move to the spill makes the copy
// the record. A plain consumer may succeed a trainer, so every holder of the seat finishes all of
// it.

#include <cstdint>
#include <span>

#include "fault_point.hpp"
#include "journal.hpp"
#include "ring_map.hpp"

namespace rollring {

class RingJournal {
  public:
    // `reader_pages` are the ring's, writable, and must outlive this object.
    RingJournal(const Geometry& geometry, const Mapping& reader_pages)
        : control_(&reader_pages.at<ReaderControl>(0)),
          journal_(control_->journal_count, control_->journal_step, control_->last_acked_step,
                   {&reader_pages.at<JournalEntry>(geometry.journal_offset() -
                                                   geometry.reader_offset())},
                   geometry.journal_records) {}

    [[nodiscard]] std::uint64_t entries_max() const { return journal_.entries_max(); }

    // Cancels tombstones that were written for an entry that is not committed after all.
    void forget_tombstones() { store_release(control_->journal_tombstones, std::uint64_t{0}); }

    // Journal::release_all() for records whose release may end groups.
    template <class Mark>
    void release_all(std::span<const JournalEntry> records, std::int64_t step, Mark mark) {
        journal_.release_all(records, step, [&](const JournalEntry& entry) {
            FAULT_POINT("ack.while_marking");
            commit_tombstones();
            mark(entry);
        });
        forget_tombstones();
    }

    // Announces the move of a record to the spill: the tail that the spill will have.
    void announce_move(std::uint64_t spill_tail) {
        store_release(control_->journal_spill_tail, spill_tail);
    }
    // The move as one event: `finish()` shows the copy and marks the original.
    template <class Finish>
    void move(const JournalEntry& from, Finish finish) {
        journal_.release_all({&from, 1}, -1, [&](const JournalEntry&) { finish(); });
        store_release(control_->journal_spill_tail, std::uint64_t{0});
    }

    // Finishes a move in the journal of a predecessor. Call it before any lane is recovered.
    Result<void> recover_spill_tail(const RingMap& map);
    // Finishes the rest by `mark(entry)`. Call it after the lanes are recovered.
    template <class Mark>
    void recover(Mark mark) {
        journal_.recover([&](const JournalEntry& entry) {
            commit_tombstones();
            mark(entry);
        });
        forget_tombstones();
    }

  private:
    // Runs after the commit of the entry and before its records are marked: once the journal is
    // cleared, no successor would finish it.
    void commit_tombstones() {
        const std::uint64_t count = peek(control_->journal_tombstones);
        if (count != 0) store_release(control_->tombstones, count);
    }

    ReaderControl* control_;
    Journal<NativePlatform> journal_;
};

// Stores where the spill's next record goes, in the page of the spill's writer.
Result<void> set_spill_tail(const RingMap& map, std::uint64_t tail);

}  // namespace rollring
