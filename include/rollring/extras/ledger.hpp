#pragma once
// The ledger of a ring: files in which each record is that the ring's stash has taken, until a
// checkpoint has it, so that the end of the processes, the machine or the job takes none of it.
//
// RingOptions::ledger_dir gives a ring its ledger, and its stash writes it. Once a checkpoint is on
// the disk, Stash::checkpointed(step) says so: batches up to this step are not given again.
//
// After the machine has gone, in a new job:
//
//   auto restore = rollring::LedgerRestore::begin("runs/42.ledger", "run42", {.step = step});
//   if (!restore) ...
//   while (true) {                          // into the new ring, whose trainer may run already
//       const auto sent = restore->send(rollring::Deadline::after_ms(1'000));
//       if (!sent && sent.error().code != rollring::Errc::timed_out) ...
//       if (sent && !*sent) break;          // all are sent
//   }
//
// To look before, which changes nothing:
//
//   const auto ledger = rollring::Ledger::open("runs/42.ledger");
//   if (!ledger) ...
//   std::uint64_t tokens = 0;
//   for (std::size_t i = 0; i < ledger->records().size(); i++) {
//       const auto record = ledger->read(i);
//       if (record) tokens += record->view().n_tokens();
//   }
//
// docs/ledger.md has the promise, the files, and the state after a death at each moment.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
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

struct LedgerStat {
    std::string directory;
    std::string ring;  // that it was written for last
    std::uint64_t ring_id;
    std::uint64_t records;  // that no checkpoint has, as are all of the next four
    std::uint64_t tokens;
    std::uint64_t groups;
    std::uint64_t acked;  // of the records, those that were acknowledged
    std::uint64_t record_bytes;
    std::uint64_t file_bytes;  // of all files
    std::uint64_t files;
    bool is_written;      // by a living process
    std::string failure;  // of its disk; empty: none
    // Rollouts that are parked beside it (rollring/extras/parked.hpp), and their bytes.
    std::uint64_t parked;
    std::uint64_t parked_bytes;
    std::int64_t oldest_parked_ns;  // CLOCK_REALTIME; 0: there is none
    // Parts that cannot be read, for people, and the number of records among them that were whole
    // when they were written, or never were: the disk had not taken them yet.
    std::vector<std::string> damaged;
    std::uint64_t unreadable;
};

// Looks through a ledger, and checks all of its records. Takes no part; a ledger that is being
// written may be looked at.
// Errors: not_found (no ledger is there), not_a_ring, abi_mismatch (another version of the format,
// or of the standard columns), permission_denied, system.
ROLLRING_API Result<LedgerStat> stat_ledger(const std::filesystem::path& directory);

// A record that a ledger keeps, without its columns.
struct KeptInfo {
    std::uint64_t number;  // in its ledger
    GroupKey key;
    std::uint64_t tokens;
    std::optional<std::int64_t> step;  // of its acknowledgement; none: it was not acknowledged
};

// A record of a ledger, in memory of its own.
class ROLLRING_API KeptRecord {
  public:
    KeptRecord(KeptRecord&&) noexcept;
    KeptRecord& operator=(KeptRecord&&) noexcept;
    ~KeptRecord();

    // Ends with this object, and goes with it when it is moved.
    [[nodiscard]] const TrajectoryView& view() const;

  private:
    friend class Ledger;
    struct ROLLRING_LOCAL Impl;
    explicit KeptRecord(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// The records of a ledger that no checkpoint has, as they were when it was opened. It takes no
// part: it takes no lock, writes nothing and holds no file open, so that a living writer goes on.
// Any thread may call the const members at once, and so may a forked child.
class ROLLRING_API Ledger {
  public:
    // Looks through all of it, as stat_ledger() does. Errors: those of stat_ledger().
    static Result<Ledger> open(const std::filesystem::path& directory);
    Ledger(Ledger&&) noexcept;
    Ledger& operator=(Ledger&&) noexcept;
    ~Ledger();

    [[nodiscard]] const Schema& schema() const;
    [[nodiscard]] const LedgerStat& stat() const;
    // In the order in which a restore would send them.
    [[nodiscard]] std::span<const KeptInfo> records() const;
    // Reads and checks one record. Requires index < records().size().
    // Errors, after each of which others can be read: not_found (its file was removed since, for
    // records that are settled or were moved), checksum_mismatch (damaged since; names the file and
    // the offset), not_a_ring and abi_mismatch (likewise, the header of its file),
    // permission_denied, system.
    [[nodiscard]] Result<KeptRecord> read(std::size_t index) const;

  private:
    struct ROLLRING_LOCAL Impl;
    explicit Ledger(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

struct RestoreOptions {
    // Of the checkpoint from which the trainer goes on: batches that were acknowledged with steps
    // up to it are not given again. None: those that Stash::checkpointed() was told of.
    std::optional<std::int64_t> step = {};
    // Of the new ring. None: the restored one; it must be another one if that has failed.
    std::optional<std::string> ledger_dir = {};
    std::string producer_name = "restore";
};

struct RestoreStat {
    std::uint64_t records;  // to send; those that cannot be read any more leave it
    std::uint64_t groups;
    std::uint64_t sent;      // of the records
    std::uint64_t tokens;    // that were sent
    std::uint64_t bytes;     // likewise
    std::uint64_t left_out;  // records that RestoreOptions::step names
    std::uint64_t parked;    // rollouts, beside the new ring's ledger
    // As in LedgerStat. Damage in a file that has an index shows when its record is to be sent.
    std::vector<std::string> damaged;
    std::uint64_t unreadable;
};

// Copies the parked rollouts, if the new ring has its ledger elsewhere, and sends the records of a
// ledger into a new ring: first the groups of acknowledged batches, in the
// order of those, then all others in the order of their first records. Groups that are not complete
// stand where they stood, and members that come later complete them.
//
// One thread at a time; in a forked child, send() returns Errc::forked. If it is killed, remove the
// ring and begin again: the ledger is unchanged.
class ROLLRING_API LedgerRestore {
  public:
    // Makes the ring, with the sizes that it had, if there is none. One that is there must have the
    // same columns, the ledger of the options, and no stash yet.
    // Errors: as stat_ledger(); busy (a living process writes the ledger, or a restore has sent
    // records into the ring before), layout_mismatch, ledger_failed (the new ring would use it),
    // and those of create_ring().
    static Result<LedgerRestore> begin(const std::filesystem::path& directory,
                                       std::string_view ring, const RestoreOptions& options = {});
    LedgerRestore(LedgerRestore&&) noexcept;
    LedgerRestore& operator=(LedgerRestore&&) noexcept;
    ~LedgerRestore();

    // Sends the next record; false: all were sent. Errors: timed_out (the ring has no room by the
    // deadline; call it again), too_large and bad_record (the ring cannot hold it), closed (the
    // ring was removed), ledger_failed (the disk cannot read a record, and the new ring would go on
    // in the same directory), not_a_ring (an index names other records than its file has). A
    // damaged record is passed over: stat() names it.
    Result<bool> send(Deadline deadline);
    [[nodiscard]] RestoreStat stat() const;

  private:
    struct ROLLRING_LOCAL Impl;
    explicit LedgerRestore(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
