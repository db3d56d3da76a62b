#pragma once
// The journal: makes the release of many records over many lanes one event.
//
//   write entries -> store count (the commit point) -> mark all -> store step -> store count 0
//
// A consumer killed before the commit point has released nothing; after it, its successor marks
// again, which is idempotent because positions never repeat. The idea is that of a write-ahead log.

#include <cstdint>
#include <span>

#include "layout.hpp"

namespace rollring {

template <class Platform>
class Journal {
    using Order = typename Platform::Order;
    using AtomicU64 = typename Platform::template Atomic<std::uint64_t>;
    using AtomicI64 = typename Platform::template Atomic<std::int64_t>;

  public:
    Journal(AtomicU64& count, AtomicI64& step, AtomicI64& last_acked_step,
            typename Platform::JournalEntries entries, std::uint64_t entries_max)
        : count_(&count),
          step_(&step),
          last_acked_step_(&last_acked_step),
          entries_(entries),
          entries_max_(entries_max) {}

    [[nodiscard]] std::uint64_t entries_max() const { return entries_max_; }

    // Releases all of `records` or, if we are killed before the commit point, none.
    // `mark(entry)` sets the bits of one record. The caller advances the lanes afterwards.
    // records.size() <= entries_max(). A negative step leaves last_acked_step as it is.
    template <class Mark>
    void release_all(std::span<const JournalEntry> records, std::int64_t step, Mark mark) {
        for (std::uint64_t i = 0; i < records.size(); i++) entries_.write(i, records[i]);
        step_->store(step, Order::store_journal);
        count_->store(records.size(), Order::store_journal);
        // From the caller's checked records, and not from the shared entries, which others may
        // overwrite.
        for (const JournalEntry& record : records) mark(record);
        finish(step);
    }

    // Called by a consumer that has taken the seat, after its lanes are recovered and before it
    // polls. Returns how many entries were replayed.
    template <class Mark>
    std::uint64_t recover(Mark mark) {
        const std::uint64_t count = count_->load(Order::recover);
        if (count == 0 || count > entries_max_) return 0;
        for (std::uint64_t i = 0; i < count; i++) mark(entries_.read(i));
        finish(step_->load(Order::recover));
        return count;
    }

  private:
    void finish(std::int64_t step) {
        if (step >= 0) last_acked_step_->store(step, Order::store_journal);
        count_->store(0, Order::store_journal);
    }

    AtomicU64* count_;
    AtomicI64* step_;
    AtomicI64* last_acked_step_;
    typename Platform::JournalEntries entries_;
    std::uint64_t entries_max_;
};

}  // namespace rollring
