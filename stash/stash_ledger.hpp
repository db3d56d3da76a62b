#pragma once
// The ledger of a ring, as its stash uses it: each record that the stash takes goes there, and so
// does its end. Core code that needs none of the ledger's own; extras/ledger defines it, and a
// program without it refuses rings that have a ledger.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ledger_place.hpp"
#include "rollring/consumer.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/time.hpp"

namespace rollring {

inline constexpr std::int64_t disk_patience_ms = 60'000;

// Names a record, with the id of its ring: the lane, epoch and sequence of its producer.
struct RecordIdentity {
    std::uint32_t lane = 0;
    std::uint32_t epoch = 0;
    std::uint64_t sequence = 0;
    friend bool operator==(const RecordIdentity&, const RecordIdentity&) = default;
};

// One thread calls it, the stash's. In a forked child no function but the destructor is called.
class StashLedger {
  public:
    StashLedger() = default;
    StashLedger(const StashLedger&) = delete;
    StashLedger& operator=(const StashLedger&) = delete;
    virtual ~StashLedger() = default;

    // Whether a record may be read now. False while the disk is behind or the ledger is full.
    [[nodiscard]] virtual bool takes() = 0;
    // Whether a batch may be cut now. False with Durable::record until the disk has all records
    // that were read.
    [[nodiscard]] virtual bool may_cut() = 0;
    // Waits until takes() or may_cut() may have changed.
    virtual void wait(Deadline deadline) = 0;
    // A record was read. False: a checkpoint has it already, and it must leave. Otherwise its bytes
    // stay where they are until end_turn(), unless dropped() names it.
    [[nodiscard]] virtual bool read(const Record& record) = 0;
    // The record leaves the ring without having been trained on. Before it is released.
    virtual void dropped(const Record& record) = 0;
    // Records that were read since the last call, and not dropped, are written now.
    virtual void end_turn() = 0;
    // These records are about to be released, as trained on with this step, once end_ack() has
    // succeeded. Others may be read meanwhile.
    virtual void begin_ack(std::span<const Record* const> records, std::int64_t step) = 0;
    // Whether end_ack() need not wait.
    [[nodiscard]] virtual bool ack_is_over() = 0;
    // Waits until the ledger has all of it. After an error the batch stays leased. Errors:
    // ledger_failed, timed_out.
    [[nodiscard]] virtual Result<void> end_ack(Deadline deadline) = 0;
    // None of them was acknowledged after all.
    virtual void ack_failed() = 0;
    // A checkpoint has them: they are never given again. The number of records that this is news
    // of; waits until it is durable.
    [[nodiscard]] virtual Result<std::uint64_t> settle(std::uint64_t ring_id,
                                                       std::span<const RecordIdentity> records) = 0;
    // The same for all batches that were acknowledged with steps up to this one.
    [[nodiscard]] virtual Result<std::uint64_t> settle_through(std::int64_t step) = 0;
    // Waits until every record that was read is durable.
    [[nodiscard]] virtual Result<void> sync(Deadline deadline) = 0;
    // The last step that a checkpoint has, in this ring or in one that it was restored from; -1:
    // none.
    [[nodiscard]] virtual std::int64_t settled_step() const = 0;

    // Whether the disk is full: waiting alone does not help.
    [[nodiscard]] virtual bool has_no_space() const = 0;
    // Why it is broken for good; empty while it is not.
    [[nodiscard]] virtual std::string problem() const = 0;
    // Why it takes no record now; empty if it does.
    [[nodiscard]] virtual std::string waits_for() const = 0;
};

struct LedgerRequest {
    const LedgerPlan& plan;
    std::string_view ring;
    std::uint64_t ring_id;
    const Schema& schema;
    std::string sizes;  // of the ring, for the one that restores it: `name number` a line
    // Shows that the ledger has all records of the lane's epoch below this sequence. Another thread
    // may call it, until the ledger is destroyed.
    std::function<void(std::uint32_t lane, std::uint32_t epoch, std::uint64_t records)> show;
    // Whether the stash has read all records that an earlier one had moved out of their lanes.
    // Until then, a later record of the lane says nothing about the earlier ones.
    std::function<bool()> moved_are_read;
};

using OpenStashLedger = Result<std::unique_ptr<StashLedger>> (*)(LedgerRequest request);
// Set by extras/ledger as it is loaded; null: this program has none.
extern constinit std::atomic<OpenStashLedger> open_stash_ledger;

}  // namespace rollring
