#pragma once
// The trainer's loop: it receives complete groups, one lease at a time.
//
//   auto opened = rollring::Stash::open("ring", {.batch = BatchTarget::groups(32)});
//   if (!opened) ...                        // opened.error() says why
//   rollring::Stash& stash = **opened;
//   rollring::Batch batch;
//   while (stash.next(batch, Deadline::after_ms(60'000)) == NextBatch::batch) {
//       train(batch);                       // spans over shared memory, whole groups
//       if (!batch.ack(step++)) ...         // all or nothing, whatever instruction we die at
//   }
//
// The stash turns interleaved rollouts into complete, prompt-aligned groups, as StashOptions say;
// its account says what became of each record.
//
// One thread at a time. A Stash is the ring's consumer. If it dies, its successor gets every record
// that was not acknowledged and none that was, and forms the groups anew. In a forked child a Stash
// and its batches are inert: they write nothing, and calls that return an error return
// Errc::forked.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/consumer.hpp"
#include "rollring/error.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

enum class AtDeadline : std::uint8_t { ship, drop, hold };
enum class OnFailed : std::uint8_t { shrink, void_group, hold };
enum class BadReward : std::uint8_t { fail, void_group, absent };
enum class Select : std::uint8_t { first, uniform };
enum class ZeroVariance : std::uint8_t { keep, drop };
enum class Stale : std::uint8_t { drop, withhold };
enum class Order : std::uint8_t { windowed, fifo, freshest };
// The names of the enumerators, as they are written here.
ROLLRING_API std::string_view name(AtDeadline policy);
ROLLRING_API std::string_view name(OnFailed policy);
ROLLRING_API std::string_view name(BadReward policy);
ROLLRING_API std::string_view name(Select policy);
ROLLRING_API std::string_view name(ZeroVariance policy);
ROLLRING_API std::string_view name(Stale policy);
ROLLRING_API std::string_view name(Order order);

struct SourceWeight {
    std::int64_t source_id;
    double weight;  // share of tokens relative to the other sources; 1 where not listed
};

// The amount that makes a batch, counted in one unit.
class BatchTarget {
  public:
    enum class Unit : std::uint8_t { groups, sequences, tokens };

    static constexpr BatchTarget groups(std::uint32_t count) { return {Unit::groups, count}; }
    // Records, as Batch::sequences().
    static constexpr BatchTarget sequences(std::uint32_t count) { return {Unit::sequences, count}; }
    static constexpr BatchTarget tokens(std::uint64_t count) { return {Unit::tokens, count}; }

    [[nodiscard]] constexpr Unit unit() const { return unit_; }
    [[nodiscard]] constexpr std::uint64_t amount() const { return amount_; }
    // The amount if it is counted in this unit, else 0.
    [[nodiscard]] constexpr std::uint64_t of(Unit unit) const {
        return unit == unit_ ? amount_ : 0;
    }
    friend bool operator==(const BatchTarget&, const BatchTarget&) = default;

  private:
    constexpr BatchTarget(Unit unit, std::uint64_t amount) : unit_(unit), amount_(amount) {}
    Unit unit_;
    std::uint64_t amount_;
};
ROLLRING_API std::string_view name(BatchTarget::Unit unit);

// The rest of StashOptions, for unusual runs.
struct StashAdvanced {
    // Which members of a group with `extra` ones ship: the first to finish (which favours short
    // ones), or a uniform choice among all that were requested.
    Select select = Select::first;
    std::uint64_t seed = 0;  // of the uniform choice

    // Rewards that are no more than zero_variance_tolerance apart count as equal. At most
    // zero_variance_run groups are dropped in a row for equal rewards, then one is kept: a run
    // whose rewards never differ must not starve the trainer.
    double zero_variance_tolerance = 0.0;
    std::uint32_t zero_variance_run = 1024;

    // The window of Order::windowed, as a share of a batch: of (batch / window_fraction) groups.
    double window_fraction = 0.3;
    std::vector<SourceWeight> source_weights = {};

    // As StashOptions::max_open_groups, in bytes of records. 0: as many as fit.
    std::uint64_t max_open_bytes = 0;
    // Whether leased groups count as open. Set it to false for a trainer that collects several
    // batches before it gives any back: producers that wait for a leased group to end would wait
    // for ever. Leased groups are then added to max_open_groups, up to its default.
    bool count_leased = true;

    // Advantages::grpo divides by the deviation of the group's rewards plus deviation_epsilon; the
    // defaults are those of TRL's GRPOTrainer. TRL's AsyncGRPOTrainer has population and 1e-8.
    Deviation deviation = Deviation::sample;
    double deviation_epsilon = 1e-4;

    // How long, and for how many groups, the stash remembers that a group is over: a late member
    // must not open its group again.
    std::chrono::nanoseconds tombstone = std::chrono::hours(1);
    std::uint32_t tombstones = 1 << 20;

    // False: the ring's ledger is not written, for a ring whose ledger has failed. The records of
    // this run are then as safe as the machine.
    bool ledger = true;

    // After this time without a batch, while groups are open, the stash reports their missing
    // members.
    std::chrono::nanoseconds no_progress = std::chrono::minutes(1);
};

// Defaults suit GRPO with groups of 8 on one trainer. Most runs set group_size, batch and max_lag,
// and some a deadline; the other options say how unusual groups end. The order of the fields is
// stable, for designated initialisers.
struct StashOptions {
    // A group is complete when this many members are final. A record's own group_size wins.
    std::uint32_t group_size = 8;
    // The number of members to accept beyond the size. `size` of them are shipped.
    std::uint32_t extra = 0;

    // Without a deadline no group ships incomplete or is dropped for its age. Past the deadline a
    // group ships with min_size members, is dropped, or is held, as at_deadline says. The event
    // `overdue` reports held groups with their missing members (without a deadline, from the tenth
    // minute on); a held group does not delay younger ones.
    // The age begins when the first record is read; for records that an earlier trainer has read,
    // when they were sent, so that restarts do not postpone the deadline. A group is decided once
    // all records sent by its deadline are read.
    std::optional<std::chrono::nanoseconds> deadline = {};
    std::optional<AtDeadline> at_deadline = {};  // ship, where there is a deadline
    std::uint32_t min_size = 2;  // a smaller group never ships (unless its size is smaller)

    // The end of a group with a failed member: it ships without that member, is dropped as a whole,
    // or waits for a retry.
    OnFailed on_failed = OnFailed::shrink;

    // The effect of a reward that is NaN or infinite: its member counts as failed (on_failed
    // decides about the group), its whole group is dropped, or its member stays and counts as one
    // without a reward. StashAccount::bad_rewards and each batch have the count.
    BadReward bad_reward = BadReward::fail;

    // Groups whose rewards are all equal, or differ by rounding only (are_flat), carry no signal.
    // Members without a reward are not compared.
    ZeroVariance zero_variance = ZeroVariance::keep;

    // The number of policy versions by which the oldest generated token of a member may lag; -1:
    // any. Checked when a member comes, and again when its batch is cut. A stale member is dropped,
    // or withheld: it counts for the group's baseline and is marked as not to be trained on.
    std::int64_t max_lag = -1;
    Stale stale = Stale::drop;

    // Which complete groups a batch takes: the oldest within a window, strictly the oldest (waits
    // for stragglers), or the latest to complete.
    Order order = Order::windowed;

    // A batch is cut when this much is complete. Groups are never split, so a batch by sequences or
    // tokens may exceed its target by less than one group.
    BatchTarget batch = BatchTarget::groups(16);

    // Producers wait before they open a group, never within one, while this many groups are open
    // (incomplete, ready or leased) or announced, or max_open_bytes of records are held.
    //
    // Both bounds are soft. Groups may exceed theirs by one for each producer, bytes by the records
    // in the lanes, and both by one group at a time while all producers wait and no group could
    // complete otherwise.
    //
    // 0: as many groups as RingOptions::group_rows, minus the number of lanes if there are more
    // than two rows a lane.
    std::uint32_t max_open_groups = 0;

    // Computed for each group when its batch is cut, by the formulas of batch.hpp.
    Advantages advantages = Advantages::grpo;

    StashAdvanced advanced = {};

    // The values of deadline and at_deadline, with their defaults.
    [[nodiscard]] std::chrono::nanoseconds due_after() const {
        return deadline.value_or(std::chrono::minutes(10));
    }
    [[nodiscard]] AtDeadline when_due() const {
        return at_deadline.value_or(deadline ? AtDeadline::ship : AtDeadline::hold);
    }
};

// Names the first field that is out of its range.
ROLLRING_API Result<void> validate(const StashOptions& options);

// Why a record left without being shipped.
enum class DropReason : std::uint8_t {
    duplicate,   // the same (group, repetition, subsequence, attempt) was there already, or all of
                 // its member from another producer
    superseded,  // a higher attempt of the member is known
    late,        // its group was shipped, leased or dropped before it came
    surplus,     // beyond the group's size, or not chosen
    failed,      // the mark of a failed member
    bad_reward,  // its member's reward is NaN or infinite, and the policy fails such members
    group_void,  // another member failed or has a bad reward, and the policy voids the group
    too_few,     // fewer than min_size members can ever be final
    deadline,    // the group was too old, and the policy drops it
    zero_variance,  // all rewards equal, but for rounding
    stale,          // its oldest generated token lags too far behind
    unfinished,  // subsequences of an incomplete member when its group was decided or its producer
                 // left
    mixed_numbers,  // it has a repetition_id and the first of its group has none, or the other way
                    // round
    oversized,      // its group has more records than one acknowledgement can hold: the ring needs
                    // more journal_records (create --journal-records)
    count,
};
ROLLRING_API std::string_view name(DropReason reason);

struct Amount {
    std::uint64_t records = 0;
    std::uint64_t tokens = 0;

    Amount& operator+=(const Amount& more) {
        records += more.records;
        tokens += more.tokens;
        return *this;
    }
    Amount& operator-=(const Amount& less) {
        records -= less.records;
        tokens -= less.tokens;
        return *this;
    }
    friend bool operator==(const Amount&, const Amount&) = default;
};

// One amount for each DropReason.
using DropAmounts = std::array<Amount, static_cast<std::size_t>(DropReason::count)>;

// Promise P5, at every moment: accepted = shipped + dropped + held + leased.
struct ROLLRING_API StashAccount {
    Amount accepted;
    Amount shipped;
    Amount held;
    Amount leased;
    DropAmounts dropped;
    std::uint64_t groups_opened = 0;
    std::uint64_t groups_shipped = 0;
    std::uint64_t groups_partial = 0;  // shipped with fewer members than their size
    std::uint64_t groups_dropped = 0;
    std::uint64_t batches = 0;         // acknowledged
    std::uint64_t size_conflicts = 0;  // members that name another group size than the first did
    std::uint64_t bad_rewards = 0;     // records with a reward that is NaN or infinite

    [[nodiscard]] Amount dropped_total() const;
    [[nodiscard]] bool conserved() const;
};

enum class GroupState : std::uint8_t {
    free,     // there is no group
    open,     // waits for members
    ready,    // waits for a batch
    leased,   // in a batch: trained on
    unknown,  // its row is damaged
};
ROLLRING_API std::string_view name(GroupState state);

// One group that is not over: from stat_stash(), and from Stash::explain() in the trainer itself.
struct ROLLRING_API GroupStat {
    GroupKey key;
    std::string instance_id;  // printable; from outside its first 40 bytes
    GroupState state;
    std::int64_t age_ns;        // since its first record
    std::int64_t unchanged_ns;  // since its last change; negative if the board has no row for it
    std::uint32_t size;         // members asked for
    std::uint32_t complete;     // members that are complete
    std::uint32_t failed;
    std::uint32_t records;  // held
    std::uint64_t tokens;   // held
    // Repetition ids that an open group waits for; from outside those below 64.
    std::vector<std::uint32_t> missing;
    // Producers of its records: "name (lane 3)", or "name (lane 3, died)". From outside, on a ring
    // of more than 64 lanes, some of them may have sent none.
    std::vector<std::string> producers;
    std::vector<std::uint32_t> lanes;  // of the same producers

    [[nodiscard]] std::string missing_text() const;    // "1, 4-7", or "none"
    [[nodiscard]] std::string producers_text() const;  // with commas between them
    // The group in one line, as events and messages show it, with the first of its missing members.
    [[nodiscard]] std::string to_string() const;
};

enum class [[nodiscard]] NextBatch {
    batch,
    timed_out,  // not enough was complete by the deadline, or interrupt() was called
    closed,     // this process is a forked child, or the ring was removed: see problem()
};
ROLLRING_API std::string_view name(NextBatch answer);

// The batch that was leased last.
struct LatestBatch {
    std::uint64_t sequences = 0;  // 0: none yet
    std::uint64_t tokens = 0;
    std::uint64_t rewarded = 0;  // members with a reward
    double mean_reward = 0;      // of those
};

// The stash's copies since it was opened.
struct StashCopies {
    std::uint64_t copied_bytes;       // to the spill; 0 unless groups stayed incomplete for long
    std::uint64_t evacuated_records;  // the same in records
    std::uint64_t batches_short;  // cut early, because everything was full or nothing could come
};

// A producer that has lost a third or more of its records, and at least four, as late or duplicate.
// As a rule it uses the keys (instance_id, visit) of another producer or of an earlier run, so that
// its groups were mixed with theirs, or lost.
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
    // Acknowledges the records of a receipt that are still there, before the first next() of
    // a restarted trainer. Returns their number; 0 if ack() had succeeded. `step` is as in ack(),
    // but a step below the last one leaves that unchanged.
    // Errors: invalid_argument (not a receipt of this ring, or the call is too late), forked.
    Result<std::uint64_t> settle(std::string_view receipt, std::int64_t step);

    // For a ring with a ledger (RingOptions::ledger_dir): a checkpoint now has all batches that
    // were acknowledged with steps up to this one, so that `rollring restore` gives none of them
    // again. Returns the number of their records, once the disk has the note of it. Without a
    // ledger nothing happens. Errors: ledger_failed, timed_out (the disk), forked.
    Result<std::uint64_t> checkpointed(std::int64_t step);
    // Waits until the ledger has every record that was read, and the disk, too, unless the ring is
    // Durable::none. Without a ledger nothing happens. Errors: as checkpointed().
    Result<void> sync_ledger(Deadline deadline);

    Stash(const Stash&) = delete;
    Stash& operator=(const Stash&) = delete;
    ~Stash();  // gives the seat back; the next Stash delivers the leased groups again

    // Reads records and leases a batch as soon as enough groups are complete. After the deadline it
    // still reads the records that are there, up to 4,096.
    NextBatch next(Batch& batch, Deadline deadline);
    // The former name of next().
    NextBatch next_batch(Batch& batch, Deadline deadline) { return next(batch, deadline); }
    // Makes the current next(), or else the following one, return timed_out soon. Any thread may
    // call this while another one uses the stash.
    void interrupt();
    // Leases all complete groups, even if they are less than a batch; for the end of a run. Reads
    // the records that are there, as next() does, and does not wait.
    NextBatch rest(Batch& batch);

    [[nodiscard]] StashAccount account() const;
    [[nodiscard]] StashCopies copies() const;
    [[nodiscard]] std::size_t open_groups() const;
    // Whether groups are open and nothing was acknowledged for StashAdvanced::no_progress.
    [[nodiscard]] bool no_progress() const;
    // The oldest incomplete groups, at most `count`, as stat_stash() shows them from outside, but
    // with the whole instance_id, all missing members, and only producers that have sent.
    [[nodiscard]] std::vector<GroupStat> explain(std::size_t count) const;
    // A text for people after next() has timed out: the missing members of the oldest groups, their
    // producers and which of them have died, and the records dropped since the last batch, with the
    // likely cause.
    [[nodiscard]] std::string waits_for() const;
    // Turns unreported counts into events: call it before the last next_event().
    void tell_all();
    // The last part of waits_for() alone; empty if nothing was dropped.
    [[nodiscard]] std::string dropped_since_batch() const;
    // Events of producers, as Consumer::next_event(), and of records and groups.
    bool next_event(Event& event);
    // Producers that lost a third or more as duplicate or late, since this stash was opened.
    [[nodiscard]] std::vector<RepeatedKeys> repeated_keys() const;
    // Why next() returns `closed`, for people; empty if it does not.
    [[nodiscard]] std::string problem() const;

    [[nodiscard]] const Schema& schema() const;
    // The last step of ack() and settle(), also of predecessors; -1: none yet.
    [[nodiscard]] std::int64_t last_acked_step() const;
    // Version last committed on the weight channel; -1: none.
    [[nodiscard]] std::int64_t policy_version() const;
    // Producers that hold a lane which is not drained yet.
    [[nodiscard]] std::uint32_t producers_active() const;
    // Records that one ack() can release, at most: the length of the ring's journal.
    [[nodiscard]] std::uint64_t journal_records() const;
    // Counts of the records read, as Consumer::stats(); account() says what became of them.
    [[nodiscard]] ConsumerStats stats() const;
    // A former name, from the time of a separate object: returns this stash.
    [[nodiscard]] const Stash& consumer() const { return *this; }

  private:
    friend class Batch;
    struct ROLLRING_LOCAL Impl;
    explicit Stash(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;  // its leases keep the memory, too
};

}  // namespace rollring
