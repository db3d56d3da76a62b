#pragma once
// A batch of whole groups: its records in place (Sequences), the lease over their memory, the
// advantages of its groups, and its division among ranks and into micro-batches. A Stash fills a
// Batch (stash.hpp); a Reader opens a rank's share of one in another process.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/time.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

enum class DropReason : std::uint8_t;  // stash.hpp

// The formula by which the stash computes advantages from the rewards of a group: GRPO's, or one of
// its relatives.
enum class Advantages : std::uint8_t { none, grpo, mean, loo };
// The deviation of a group's rewards: over n - 1 (torch's `std`), or over n (numpy's).
enum class Deviation : std::uint8_t { sample, population };
// The names of the enumerators, as they are written here.
ROLLRING_API std::string_view name(Advantages kind);
ROLLRING_API std::string_view name(Deviation kind);

// The defaults are those of TRL's GRPOTrainer.
struct AdvantageFormula {
    Advantages kind = Advantages::grpo;
    Deviation deviation = Deviation::sample;  // grpo divides by it
    double epsilon = 1e-4;                    // added to the deviation
};

// Advantages of one group, from the rewards of its members:
//   none  0
//   grpo  (r - mean) / (deviation + epsilon)
//   mean  r - mean
//   loo   r - mean of the others (RLOO)
// A NaN stands for a missing reward. A member with a NaN or an infinite reward has the advantage 0,
// and the others are computed as if it were not in the group. All are 0 if fewer than two rewards
// are left, and in a flat group. Never NaN.
// Source: DeepSeekMath (GRPO); Ahmadian et al. 2024 (RLOO). advantages.size() == rewards.size().
ROLLRING_API void group_advantages(std::span<const double> rewards, const AdvantageFormula& formula,
                                   std::span<double> advantages);

// Whether the rewards of a group differ by rounding only: the highest and the lowest differ by at
// most 1e-6 times the larger of their magnitudes. A magnitude below 1e-6 counts as 1e-6, because
// sums that cancel out leave rounding errors near 0. The epsilon of float32 is 1.2e-7.
[[nodiscard]] ROLLRING_API bool are_flat(double lowest, double highest);

class Batch;
class Sequences;

namespace detail {
ROLLRING_API extern std::uint64_t
    forks;  // of this process and its ancestors: grows in each forked child
}

// Memory of one lane of a ring, as this process has it mapped.
struct MappedLane {
    const std::byte* data;
    std::uint64_t bytes;
    std::uint64_t generation;  // changes when its pages are returned to the system
    bool used;                 // by a producer
};

// The lanes of a ring that is mapped here, in the order of their addresses: for code that registers
// them with a device. Any thread may call it.
class ROLLRING_API MappedLanes {
  public:
    MappedLanes() = default;
    MappedLanes(const MappedLanes&) = delete;
    MappedLanes& operator=(const MappedLanes&) = delete;
    virtual ~MappedLanes() = default;
    [[nodiscard]] virtual std::size_t count() const = 0;
    [[nodiscard]] virtual MappedLane lane(std::size_t number) const = 0;
};

// The lease of one batch, or of a Share of one. Cheap to copy; may outlive its Batch and its Stash.
// While a copy exists, the memory under the batch's views stays mapped, but once holds() is false,
// the bytes there may be another record's. It is for bindings, whose arrays may outlive the batch
// that they show.
class Lease {
  public:
    Lease() = default;

    // False after the batch's ack() or nack(), when its stash is gone, and in a forked child; of a
    // share, after its close(). Any thread may call it.
    [[nodiscard]] bool holds() const {
        return state_ != nullptr && state_->leased.load() && state_->forks == detail::forks;
    }
    // A number that no other lease of this process has; 0: none.
    [[nodiscard]] std::uint64_t id() const { return state_ == nullptr ? 0 : state_->id; }
    // The memory under the views; stays mapped while this pointer is kept. Null without a lease.
    [[nodiscard]] std::shared_ptr<const MappedLanes> lanes() const {
        return state_ == nullptr ? nullptr : state_->lanes;
    }

  private:
    friend class Stash;
    friend class Batch;
    friend class LeaseBook;
    friend class Sequences;
    friend class Share;
    friend class RecordedBatch;  // extras/recording.hpp
    struct State {
        std::uint64_t id;
        std::uint64_t forks;
        std::shared_ptr<void> stash;
        Batch* batch;  // its present address; null: the lease is of a share
        std::shared_ptr<const MappedLanes> lanes;
        std::atomic<bool> leased{true};
    };
    std::shared_ptr<State> state_;
};

// One record of a batch: a sequence to train on.
struct Sequence {
    const TrajectoryView& view;  // it and its data are valid while the batch is leased
    std::uint32_t group;         // index of its group, as in groups()
    std::uint32_t member;        // index of its member within the group
    bool withheld;               // stale: counts for the baseline, is not to be trained on
};

struct BatchGroupInfo {
    GroupKey key;
    std::uint32_t size;     // asked for
    std::uint32_t members;  // shipped; fewer if members failed or the deadline has passed
    // Of its members, those whose reward is NaN or infinite: not shipped, or shipped as if they had
    // none (StashOptions::bad_reward).
    std::uint32_t bad_rewards;
    // Shipped without a reward: advantage 0, and the others are compared without them.
    std::uint32_t unrewarded;
};

namespace detail {

// The layout shared by all records with the same columns. With a record's number of tokens it gives
// the offset of each column.
struct RecordForm {
    struct Column {
        std::uint64_t head;  // of its view: head_of()
        std::array<std::uint32_t, 3> inner;
        std::uint32_t row_bytes;  // of each token; 0: the column is not per token
        std::uint32_t bytes;      // without rows: the distance to the next column
    };
    std::vector<Column> columns;

    static constexpr std::uint64_t line = 64;  // columns begin at multiples of it
    // Number, dtype and count of dims, which are adjacent, in one load: bytes assembled in memory
    // would have to be stored before they are loaded.
    static std::uint64_t head_of(const ColumnView& column) {
        static_assert(offsetof(ColumnView, shape) == sizeof(std::uint64_t));
        constexpr std::size_t bytes = offsetof(ColumnView, dims) + sizeof(ColumnView::dims);
        std::uint64_t head = 0;
        std::memcpy(&head, static_cast<const void*>(&column), sizeof head);
        return head & ((std::uint64_t{1} << (8 * bytes)) - 1);
    }
    // The distance from a column with that many tokens to the next one.
    static std::uint64_t bytes_of(std::uint64_t row_bytes, std::uint64_t tokens) {
        return (row_bytes * tokens + line - 1) / line * line;
    }
};

// The location of a sequence's columns, as in its view, but in fewer cache lines and in one array.
struct RecordPlace {
    const std::byte* columns;  // the start of the first
    std::uint32_t tokens;
    std::uint32_t form;                                   // index in forms(), or:
    static constexpr std::uint32_t no_form = 0xffffffff;  // only its view locates them
};

}  // namespace detail

// The records of a batch, or of a rank's share of one, in place: the common interface of both, and
// all that packing and gathering need. Each list is empty once the batch is no longer leased.
class ROLLRING_API Sequences {
  public:
    Sequences(const Sequences&) = delete;
    Sequences& operator=(const Sequences&) = delete;

    [[nodiscard]] bool leased() const { return lease_.holds(); }
    // Objects made from its views must keep a copy.
    [[nodiscard]] const Lease& lease() const { return lease_; }
    [[nodiscard]] std::span<const BatchGroupInfo> groups() const { return groups_; }
    // Group by group, member by member (in order of repetition), subsequence by subsequence.
    [[nodiscard]] std::span<const Sequence> sequences() const { return sequences_; }
    // sequences() of group g are [group_offsets()[g], group_offsets()[g + 1]).
    [[nodiscard]] std::span<const std::uint32_t> group_offsets() const { return group_offsets_; }
    // Token offsets of the sequences laid end to end, as flash-attention's cu_seqlens.
    [[nodiscard]] std::span<const std::int64_t> cu_seqlens() const { return cu_seqlens_; }

    // One value per sequence. A member's subsequences share its reward and its advantage.
    [[nodiscard]] std::span<const double> rewards() const {  // absent: NaN
        return rewards_;
    }
    [[nodiscard]] std::span<const double> advantages() const { return advantages_; }
    [[nodiscard]] std::span<const std::uint32_t> repetition_ids() const { return repetition_ids_; }
    // Oldest policy version among the generated tokens of this sequence, not of its whole member;
    // -1: unknown.
    [[nodiscard]] std::span<const std::int64_t> policy_versions() const { return versions_; }

    // For code that reads columns of many sequences.
    [[nodiscard]] std::span<const detail::RecordPlace> places() const { return places_; }
    [[nodiscard]] std::span<const detail::RecordForm> forms() const { return forms_; }

  protected:
    Sequences() = default;
    Sequences(Sequences&&) noexcept = default;
    Sequences& operator=(Sequences&&) noexcept = default;
    ~Sequences() = default;

    // Begins a new lease, which keeps `keeper` alive.
    ROLLRING_LOCAL void lease_to(std::shared_ptr<void> keeper, Batch* batch,
                                 std::shared_ptr<const MappedLanes> lanes);
    // The lists are filled group by group: first its sequences, then the group itself.
    ROLLRING_LOCAL void begin(std::size_t sequences);
    ROLLRING_LOCAL void add(const TrajectoryView& view, std::uint32_t member, bool withheld,
                            double reward, double advantage);
    ROLLRING_LOCAL void end_group(const BatchGroupInfo& group);
    ROLLRING_LOCAL void clear();

    Lease lease_;

  private:
    std::vector<BatchGroupInfo> groups_;
    std::vector<Sequence> sequences_;
    std::vector<detail::RecordPlace> places_;
    std::vector<detail::RecordForm> forms_;  // a few at most
    std::vector<std::uint32_t> group_offsets_;
    std::vector<std::int64_t> cu_seqlens_;
    std::vector<double> rewards_;
    std::vector<double> advantages_;
    std::vector<std::uint32_t> repetition_ids_;
    std::vector<std::int64_t> versions_;
};

// Which rank of a training job reads which sequences of a batch.
enum class SplitBy : std::uint8_t {
    tokens,        // single sequences, balanced by tokens: the longest first, each to the rank that
                   // has the fewest
    group_tokens,  // the same with whole groups
    sequences,     // runs of sequences in the batch's order, equally many to each rank
    groups,        // runs of whole groups, equally many to each rank
    same,          // the whole batch to each rank
};
ROLLRING_API std::string_view name(SplitBy by);

// The same batch, split in the same way over the same number of ranks, gives the same shares in any
// process. Ranks are numbered as in Megatron and in torch's DeviceMesh("pipeline", "data",
// "tensor"): those of one tensor parallel group are adjacent, and a pipeline's stages lie furthest
// apart.
struct RankShare {
    std::uint32_t rank = 0;
    std::uint32_t world = 1;  // ranks of the job
    SplitBy by = SplitBy::tokens;
    // The number of adjacent ranks that read the same share. The ranks of all stages read it, too:
    // each stage reads the columns that it needs, and unread columns cost nothing.
    std::uint32_t tensor = 1;
    std::uint32_t pipeline = 1;  // stages

    // The index of the rank's share among `parts()` different ones. Requires checked numbers
    // (Batch::ticket checks them).
    [[nodiscard]] std::uint32_t part() const { return rank / tensor % parts(); }
    [[nodiscard]] std::uint32_t parts() const { return world / tensor / pipeline; }
};

struct Split {
    std::vector<std::vector<std::uint32_t>> parts;  // indices of sequences(), in its order
    std::vector<std::uint64_t> tokens;              // of each part

    // The tokens of the largest part, over the mean of all parts; 1: even.
    [[nodiscard]] ROLLRING_API double imbalance() const;
};

// A part may be empty. Errc::invalid_argument: no parts, or more than 65,536.
ROLLRING_API Result<Split> split(const Sequences& batch, SplitBy by, std::uint32_t parts);

// A lease over whole groups. Destruction without ack() is nack(). Its views must not outlive it. If
// its Stash is destroyed first, the lease ends, and the next Stash delivers the groups again. In a
// forked child it still shows the groups leased at the fork, and is valid as long as its parent's
// lease. One Batch may be passed to next() repeatedly: its arrays then need no new memory.
class ROLLRING_API Batch : public Sequences {
  public:
    Batch();
    Batch(Batch&& other) noexcept;
    Batch& operator=(Batch&& other) noexcept;
    ~Batch();

    // Releases all its records and stores `step` with them, as one event. Steps never decrease;
    // several batches may have the same step. Its tickets open no further share, and ack() waits
    // for open shares until `readers` (10 s by default), but not for those of dead processes.
    // Errors, after which nothing has changed: not_leased (acknowledged or given back before, or
    // its Stash is gone), forked, invalid_argument (`step` is negative or lower than the last one),
    // busy (it names a reader that is alive and still has a share open).
    Result<void> ack(std::int64_t step);
    Result<void> ack(std::int64_t step, Deadline readers);
    // Gives its groups up untrained: they are not delivered again, and its records count as dropped
    // for `reason`. For a trainer that knows a reason that the stash does not. Waits for readers,
    // and fails, as ack() does.
    Result<void> discard(DropReason reason);
    // Returns bytes with which a rank in another process reads its share in place (Reader). They
    // name the share's records, 64 bytes each, and are valid until ack(), nack(), or the start of
    // another trainer. Errors: invalid_argument (no such rank), busy (63 batches have tickets).
    Result<std::string> ticket(const RankShare& share = {});
    // Returns bytes that name its records, 32 bytes each, for the trainer's own checkpoint: if the
    // trainer dies after writing the checkpoint and before ack(), Stash::settle() acknowledges the
    // records afterwards.
    [[nodiscard]] std::string receipt() const;
    // Puts the groups back: a later batch delivers them again. Does nothing if the batch is not
    // leased. Does not wait for readers: their next check reports a stale ticket.
    void nack();

  private:
    friend class LeaseBook;
    ROLLRING_LOCAL void clear();
    [[nodiscard]] ROLLRING_LOCAL Result<void> check_leased() const;
    // `dropped`: the reason if the lease ends without training.
    ROLLRING_LOCAL Result<void> end_lease(std::int64_t step, Deadline readers,
                                          std::optional<DropReason> dropped);
    std::uint64_t id_ = 0;      // of the stash's count of batches
    std::uint64_t shared_ = 0;  // its number among batches with tickets; 0: it has none
    std::uint32_t shared_row_ = 0;
    std::vector<RecordRef> refs_;         // of all records that ack() releases
    std::vector<std::uint32_t> indices_;  // of the same among the records that the stash has
};

// A rank's share of a batch, read in place in another process than the one that leased it:
//
//   extern const std::string ticket;   // batch.ticket({.rank = 1, .world = 2}) of the trainer,
//                                      // which has the stash; sent by any means of the job
//   auto reader = rollring::Reader::attach("ring");   // rank 1, once
//   auto share = reader->open(ticket);
//   if (!share) ...
//   train(*share);                     // the same views, over the same memory, as of a batch
//   if (!share->close()) ...           // stale_ticket: the memory was given back meanwhile
//
// While a share is open and its process lives, the batch's ack() waits for it, until a deadline.
// The batch can still be given back while a share is open: if the trainer returns it untrained, or
// if a new trainer takes over. The memory stays mapped then, but may hold other bytes. check()
// reports this: call it once more after the last read, and if it fails, discard all data read since
// the last good check.
//
// One thread at a time for a Reader and its shares. In a forked child they are inert, and return
// Errc::forked.
struct ReaderOptions {
    // Shown to people, up to 39 bytes; empty: the program's name.
    std::string_view name = {};
    // For the ring to appear.
    std::chrono::nanoseconds attach_timeout = std::chrono::seconds(10);
};

class ROLLRING_API Share : public Sequences {
  public:
    Share(Share&& other) noexcept;
    Share& operator=(Share&& other) noexcept;
    ~Share();  // as close()

    [[nodiscard]] std::uint32_t rank() const { return rank_; }
    [[nodiscard]] std::uint32_t world() const { return world_; }
    // For each sequence, its index among those of the batch.
    [[nodiscard]] std::span<const std::uint32_t> indices() const { return indices_; }

    // Whether all data read from the share until now are the records of the ticket.
    // Errc::stale_ticket, Errc::not_leased (it was closed), Errc::forked.
    [[nodiscard]] Result<void> check() const;
    // Gives the share up, after a last check. The share is empty afterwards.
    Result<void> close();

  private:
    friend class Reader;
    struct ROLLRING_LOCAL Hold;
    Share();
    std::shared_ptr<Hold> hold_;
    std::vector<TrajectoryView> views_;
    std::vector<std::uint32_t> indices_;
    std::uint32_t rank_ = 0;
    std::uint32_t world_ = 0;
};

// Opens tickets. A ring has seats for up to 256 readers. A reader maps the ring read-only, except
// for its own seat.
class ROLLRING_API Reader {
  public:
    // Errc::busy: all seats are taken.
    static Result<Reader> attach(std::string_view ring, const ReaderOptions& options = {});
    Reader(Reader&&) noexcept;
    Reader& operator=(Reader&&) noexcept;
    ~Reader();  // its shares stay open

    // Opens the share of a ticket, up to eight at a time. Even a forged ticket shows only records
    // of this ring.
    // Errc::stale_ticket: its batch was acknowledged or given back, or is another trainer's.
    // Errc::invalid_argument: it is not a ticket. Errc::bad_record: its records are not there.
    // Errc::busy: eight are open.
    Result<Share> open(std::string_view ticket);

    [[nodiscard]] const Schema& schema() const;

  private:
    struct ROLLRING_LOCAL Impl;
    friend class Share;
    explicit Reader(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

// The sequences of a batch in bins with a budget of tokens: micro-batches that fill a step.
struct MicroBatches {
    std::vector<std::vector<std::uint32_t>> bins;  // indices of sequences, in rising order
    double fill = 0;                               // all tokens / (number of bins * budget)
};

// Best fit, the longest first: at most 11/9 of the smallest possible number of bins, plus one.
// `lengths`: tokens of each sequence. The same lengths give the same bins in any process.
// Errc::invalid_argument if a sequence is longer than the budget, or the budget is 0.
ROLLRING_API Result<MicroBatches> micro_batches(std::span<const std::uint32_t> lengths,
                                                std::uint64_t token_budget);

}  // namespace rollring
