#pragma once
// The trainer's loop: complete groups in, one lease at a time.
//
//   auto opened = rollring::Stash::open("ring", {.batch = BatchTarget::groups(32)});
//   if (!opened) ...                        // opened.error() says why
//   rollring::Stash& stash = **opened;
//   rollring::Batch batch;
//   while (stash.next_batch(batch, Deadline::after_ms(60'000)) == NextBatch::batch) {
//       train(batch);                       // spans over shared memory, whole groups
//       if (!batch.ack(step++)) ...         // all or nothing, whatever instruction we die at
//   }
//
// One thread at a time. A Stash is the ring's consumer. If it dies, its successor gets every record
// that was not acknowledged and none that was, and forms the groups anew. In a forked child a Stash
// and its batches are inert: they write nothing, and what returns an error returns Errc::forked.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/consumer.hpp"
#include "rollring/export.hpp"
#include "rollring/split.hpp"
#include "rollring/stash_options.hpp"
#include "rollring/stash_stat.hpp"

namespace rollring {

enum class [[nodiscard]] NextBatch {
    batch,
    timed_out,  // not enough was complete by the deadline, or interrupt()
    closed,     // this process is a forked child, or the ring was removed: see problem()
};
ROLLRING_API std::string_view name(NextBatch answer);

// A lease over whole groups. Given back (nack) when destroyed without ack(). Its views must not
// outlive it. If its Stash goes first, it is not leased any more: its groups come again to the
// next. In a forked child it still shows what was leased at the fork, which is good for as long as
// its parent's lease. It may be handed to next_batch() again and again, and then its arrays need no
// new memory.
class ROLLRING_API Batch : public Sequences {
  public:
    Batch();
    Batch(Batch&& other) noexcept;
    Batch& operator=(Batch&& other) noexcept;
    ~Batch();

    // Releases all its records and stores `step` with them, as one event. Steps do not go back;
    // several batches may have the same one. If there are tickets of it, nobody begins to read by
    // them any more, and whoever does so is waited for, until `readers` (10 s) at most; not those
    // that have died.
    // Errors, after which nothing has changed: not_leased (acknowledged or given back before, or
    // its Stash is gone), forked, invalid_argument (`step` is negative or lower than the last one),
    // busy (it names a reader that is alive and still has a share open).
    Result<void> ack(std::int64_t step);
    Result<void> ack(std::int64_t step, Deadline readers);
    // Gives its groups back untrained, and for good: they do not come again, and its records count
    // as dropped by `reason`. For a trainer that knows of one that the stash does not. Waits for
    // readers, and fails, as ack() does.
    Result<void> discard(DropReason reason);
    // For a rank in another process, who reads its share in place (reader.hpp): bytes that name the
    // share's records, 64 each, and stay good until ack(), nack(), or another trainer.
    // Errc::invalid_argument: no such rank. Errc::busy: 63 batches have tickets.
    Result<std::string> ticket(const RankShare& share = {});
    // Names its records, 32 bytes each, to be kept in the trainer's own checkpoint: if the trainer
    // dies between writing that and ack(), Stash::settle() acknowledges them afterwards.
    [[nodiscard]] std::string receipt() const;
    // Puts the groups back: they come again with a later batch. Nothing if it is not leased. Does
    // not wait for readers: their next check says that the ticket is stale.
    void nack();

  private:
    friend class LeaseBook;
    ROLLRING_LOCAL void clear();
    [[nodiscard]] ROLLRING_LOCAL Result<void> check_leased() const;
    // `dropped`: why, if not because it was trained on.
    ROLLRING_LOCAL Result<void> end_lease(std::int64_t step, Deadline readers,
                                          std::optional<DropReason> dropped);
    std::uint64_t id_ = 0;      // of the stash's count of batches
    std::uint64_t shared_ = 0;  // its number as one that has tickets; 0: it has none
    std::uint32_t shared_row_ = 0;
    std::vector<RecordRef> refs_;         // of everything that goes with ack()
    std::vector<std::uint32_t> indices_;  // of the same among the records that the stash has
};

// What the stash did with memory, since it was opened.
struct StashCopies {
    std::uint64_t copied_bytes;       // to the spill; 0 unless groups stayed incomplete for long
    std::uint64_t evacuated_records;  // the same in records
    std::uint64_t batches_short;  // cut early, because everything was full or nothing could come
};

// A producer of whose records a third or more (four at the least) were dropped because their group,
// or they themselves, had come before. As a rule its keys (instance_id, visit) are those of another
// producer or of an earlier run: then its groups were mixed with theirs, or lost.
struct RepeatedKeys {
    std::string producer;
    std::uint32_t lane;
    std::uint32_t epoch;
    std::uint64_t records;    // all that came from it
    std::uint64_t duplicate;  // of them, dropped by DropReason::duplicate
    std::uint64_t late;       // and by DropReason::late
};

class ROLLRING_API Stash {
  public:
    static Result<std::unique_ptr<Stash>> open(std::string_view ring, const StashOptions& options,
                                               const ConsumerOptions& consumer_options = {});
    // Acknowledges the records of a receipt that are still there, before the first next_batch() of
    // a restarted trainer. Returns how many were; 0 if ack() had been done. `step` as in ack(),
    // only that a lower one than the last leaves that one as it is.
    // Errc::invalid_argument if it is no receipt of this ring, or comes too late; Errc::forked.
    Result<std::uint64_t> settle(std::string_view receipt, std::int64_t step);

    Stash(const Stash&) = delete;
    Stash& operator=(const Stash&) = delete;
    ~Stash();  // gives the seat back; what is leased comes again to the next

    // Reads records and leases a batch as soon as enough groups are complete. After the deadline it
    // still takes what lies there, up to 4,096 records.
    NextBatch next_batch(Batch& batch, Deadline deadline);
    // Any thread may call this while another one uses the stash: its next_batch(), or else its next
    // one, answers timed_out soon, whatever its deadline.
    void interrupt();
    // Whatever is complete, be it less than a batch; for the end of a run. Reads what lies there,
    // as next_batch does, and does not wait.
    NextBatch rest(Batch& batch);

    [[nodiscard]] StashAccount account() const;
    [[nodiscard]] StashCopies copies() const;
    [[nodiscard]] std::size_t open_groups() const;
    // Nothing was acknowledged for StashOptions::no_progress while groups are open.
    [[nodiscard]] bool no_progress() const;
    // The oldest incomplete groups, at most `count`: what stat_stash() says of them from outside,
    // with the whole instance_id, all that is missing, and those producers alone who have sent.
    [[nodiscard]] std::vector<GroupStat> explain(std::size_t count) const;
    // For people, where next_batch() has timed out: what the oldest groups wait for, who has sent
    // to them and has died, and what was dropped since the last batch, with the likely cause.
    [[nodiscard]] std::string waits_for() const;
    // Makes events of what was counted and not told yet: before the last look at them.
    void tell_all();
    // The last part of waits_for() alone; empty if nothing was dropped.
    [[nodiscard]] std::string dropped_since_batch() const;
    // What happened to producers, as Consumer::next_event(), and to records and groups.
    bool next_event(Event& event);
    // Producers that lost a third or more as duplicate or late, since this stash was opened.
    [[nodiscard]] std::vector<RepeatedKeys> repeated_keys() const;
    // Why next_batch() says `closed`, for people; empty if it does not.
    [[nodiscard]] std::string problem() const;

    [[nodiscard]] const Schema& schema() const;
    // Of ack() and settle(), also by predecessors; -1: none yet.
    [[nodiscard]] std::int64_t last_acked_step() const;
    // Version last committed on the weight channel; -1: none.
    [[nodiscard]] std::int64_t policy_version() const;
    // Producers that hold a lane which is not drained yet.
    [[nodiscard]] std::uint32_t producers_active() const;
    // Records that one ack() can release, at most: the length of the ring's journal.
    [[nodiscard]] std::uint64_t journal_records() const;
    // Counts of what was read, as Consumer::stats(); account() says what became of it.
    [[nodiscard]] ConsumerStats stats() const;
    // The methods above were once those of a Consumer inside, and programs ask it for them.
    [[nodiscard]] const Stash& consumer() const { return *this; }

  private:
    friend class Batch;
    struct ROLLRING_LOCAL Impl;
    explicit Stash(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;  // its leases keep the memory, too
};

}  // namespace rollring
