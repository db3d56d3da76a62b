#pragma once
// The parts of a Stash: the reader of the ring, the state machine of groups (stash/groups/), its
// public state, evacuation, and the leased batches.

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "backlog.hpp"
#include "consumer_core.hpp"
#include "evacuation.hpp"
#include "event_queue.hpp"
#include "group_room.hpp"
#include "group_stash.hpp"
#include "lease_book.hpp"
#include "notices.hpp"
#include "receipt.hpp"
#include "repeat_watch.hpp"
#include "ring_lanes.hpp"
#include "rollring/stash.hpp"
#include "share_book.hpp"
#include "shown_stash.hpp"
#include "slab.hpp"
#include "standstill.hpp"
#include "stash_ledger.hpp"

namespace rollring {

struct Stash::Impl {
    class Turn;

    ConsumerCore core;
    StashOptions options;
    // Each held or leased record, with the view that was checked when it was read: batches use this
    // view, and never read the header again. The state machine refers to records by their numbers.
    Slab<Record> records;

  private:
    GroupStash machine_;

  public:
    const GroupStash& groups = machine_;  // only a Turn changes them
    GroupRoom room;
    EventQueue events;
    Evacuation evacuation;
    ShownStash shown;
    Standstill standstill;
    Notices notices;
    RingLanes lanes;
    LeaseBook leases;
    ShareBook shares;
    BatchPlan plan;
    Backlog backlog;  // read before a batch is cut; empty unless Order::freshest
    RepeatWatch repeats;
    std::set<std::pair<std::uint32_t, std::uint32_t>> orphans;  // (lane, epoch) of ended producers
    std::int64_t ticked_ns = 0;
    std::int64_t noted_ns = 0;  // when the lanes' tails were noted
    std::uint64_t batches_short = 0;
    std::uint64_t copied_before = 0;
    std::uint64_t evacuated_before = 0;
    bool polled = false;
    bool waits_to_cut = false;  // the last call ended while the ledger's disk held a batch back
    bool spill_read = false;    // the predecessor's records in the spill, which come first
    std::unique_ptr<StashLedger> ledger;  // null: the ring has none

    Impl(ReaderSeat seat, const StashOptions& given, const ConsumerOptions& consumer_options);
    ~Impl();

    Result<void> start();
    // Ends all leases and gives the seat back. The memory stays mapped as long as a lease uses it.
    void close();
    static Impl& of(const Lease::State& lease) { return *static_cast<Impl*>(lease.stash.get()); }
    enum class Reads { for_batch, until_acked };
    // Reads for a while, but stops once a batch is possible, or the acknowledgement is over.
    // Poll::empty if nothing came.
    Poll read(std::int64_t now_ns, Reads reads);
    [[nodiscard]] bool has_whole_batch() const { return groups.may_cut() && backlog.was_read(); }
    // Whether has_whole_batch() is exact: for other targets it says only that a search may succeed.
    [[nodiscard]] bool counts_groups() const {
        return options.batch.of(BatchTarget::Unit::groups) != 0 && options.order != Order::fifo;
    }
    Poll wait(Deadline until);
    struct Decided {
        bool cut;
        bool looked;  // for waiting producers: nothing is left to read or move
    };
    [[nodiscard]] Decided decide(std::int64_t now_ns, bool blocked, bool changed);
    [[nodiscard]] bool cut_rest(std::int64_t now_ns);
    void ship(Batch& batch, std::shared_ptr<void> self);
    void admit(Turn& turn, std::uint32_t number);
    void fail_orphans(Turn& turn);
    // True if anything was done.
    bool tick(std::int64_t now_ns);
    void keep_deadlines(Turn& turn);
    void hear_events(Turn& turn);
    [[nodiscard]] Result<std::uint64_t> settle(std::string_view receipt, std::int64_t step);

    // In stash_ledger.cpp.
    [[nodiscard]] Result<void> open_ledger(std::string_view ring);
    // Whether all records were read that lay in the spill when this stash was opened.
    [[nodiscard]] bool spill_was_read() const;
    void show_durable(std::uint32_t lane, std::uint32_t epoch, std::uint64_t records_below);
    [[nodiscard]] Result<std::uint64_t> settle_in_ledger(const Receipt& receipt) const;
    // Of a batch, which may be `dropped` instead of acknowledged.
    [[nodiscard]] Result<void> note_in_ledger(std::span<const std::uint32_t> numbers,
                                              std::size_t marks, std::int64_t step, bool dropped);
    // Whether a batch may be cut, or records read: waits a little for the ledger, if not.
    enum class Ledger { takes, waited, late, broken };
    [[nodiscard]] Ledger ask_ledger(bool cut, Deadline deadline);
    // Waits until a batch may be cut. False: a disk that is full, late or broken.
    [[nodiscard]] bool wait_cut();
    [[nodiscard]] Result<void> wait_acked();
    [[nodiscard]] static NextBatch without_batch(Ledger ledger);
};

}  // namespace rollring
