#pragma once
// Recordings: the batches that a trainer was given, in files that outlive the run. A batch that is
// read again has the same records, order, rewards and advantages, bit for bit.
//
//   extern rollring::Batch& batch;                   // of the trainer, leased from its stash
//   auto writer = rollring::RecordingWriter::open("runs/42", rollring::Schema::standard());
//   if (!writer) ...
//   const auto number = writer->add(batch);
//   if (!number) ...
//   train(batch);
//   if (!batch.ack(step) || !writer->acked(*number, step)) ...
//
//   const auto recording = rollring::Recording::open("runs/42");   // later, in any process
//   if (!recording) ...
//   for (const std::size_t at : recording->find_step(step)) {
//       const auto again = recording->read(at);      // Sequences, as a batch is
//       if (!again) ...
//       train(*again);
//   }
//
// A recording is a directory of files (docs/recording.md has their format). Each record, batch and
// acknowledgement in it has a checksum. A file that was cut short is read up to its last whole
// batch. Once add() has returned, the batch is in the system's page cache: it survives the death of
// the process, but a crash of the machine may lose everything added since the last sync().

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/version.hpp"

namespace rollring {

struct RecordingOptions {
    // A new file begins after the batch with which the current one reaches this size, or an eighth
    // of max_bytes if that is smaller.
    std::uint64_t file_bytes = std::uint64_t{1} << 30;
    // The oldest files are removed while the total size exceeds this; 0: no limit. The newest file
    // always stays.
    std::uint64_t max_bytes = 0;
};

// Writes a recording. One thread at a time; one writer for each directory. In a forked child every
// call returns Errc::forked.
class ROLLRING_API RecordingWriter {
  public:
    // Makes the directory, if there is none, or continues the recording in it with a new file.
    // Errors: busy (a live process writes it), layout_mismatch (it has other columns),
    // permission_denied, invalid_argument, system.
    static Result<RecordingWriter> open(const std::filesystem::path& directory,
                                        const Schema& schema, const RecordingOptions& options = {});
    RecordingWriter(RecordingWriter&&) noexcept;
    RecordingWriter& operator=(RecordingWriter&&) noexcept;
    ~RecordingWriter();

    // Appends a leased batch, or a share of one, and returns its number. The numbers of a recording
    // rise by one from 0, also over several writers.
    // `batch` has the records of a ring with the writer's schema.
    // Errors: not_leased, bad_record (it has other columns), system (ENOSPC, EIO: the file was cut
    // back to the batch before, and each later call returns the same error), forked.
    Result<std::uint64_t> add(const Sequences& batch);
    // Appends the records of one group that no stash has formed, as a batch of its own: in order of
    // repetition and subsequence, with advantages by `formula`. Returns its number. `size`: the
    // members that were asked for. Errors: as add(), and invalid_argument (no records, or records
    // of several groups).
    Result<std::uint64_t> add_group(std::span<const TrajectoryView* const> records,
                                    std::uint32_t size, const AdvantageFormula& formula = {});
    // Notes that the batch of this number was acknowledged with this step.
    Result<void> acked(std::uint64_t number, std::int64_t step);
    // Waits until the disk has everything (fdatasync).
    Result<void> sync();

    [[nodiscard]] std::uint64_t bytes() const;  // of all files of the directory that it knows

  private:
    struct ROLLRING_LOCAL Impl;
    explicit RecordingWriter(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// One batch of a recording, without its records.
struct RecordedInfo {
    std::uint64_t number;              // RecordingWriter::add()
    std::optional<std::int64_t> step;  // of its last acknowledgement; none: it was not acknowledged
    std::int64_t recorded_ns;          // CLOCK_REALTIME
    std::uint32_t groups;
    std::uint32_t sequences;
    std::uint64_t tokens;
};

// A batch of a recording: copies of its records in memory of its own, and the groups, order,
// rewards and advantages that the trainer had. Views into it end with it.
class ROLLRING_API RecordedBatch : public Sequences {
  public:
    RecordedBatch(RecordedBatch&&) noexcept;
    RecordedBatch& operator=(RecordedBatch&&) noexcept;
    ~RecordedBatch();

  private:
    friend class Recording;
    struct ROLLRING_LOCAL Memory;
    RecordedBatch();
    std::vector<TrajectoryView> views_;
};

// Reads a recording, also one that is being written: refresh() shows what has been added. Any
// thread may call the const members at once, and each process may have its own.
class ROLLRING_API Recording {
  public:
    // `path`: the directory, or one file of it.
    // Errors: not_found, not_a_ring (not a recording), abi_mismatch (of a newer version, or of one
    // with other standard columns), permission_denied, system.
    static Result<Recording> open(const std::filesystem::path& path);
    Recording(Recording&&) noexcept;
    Recording& operator=(Recording&&) noexcept;
    ~Recording();

    [[nodiscard]] const Schema& schema() const;
    // In the order in which they were recorded.
    [[nodiscard]] std::span<const RecordedInfo> batches() const;
    // The indices in batches() of those that were acknowledged with this step, in their order.
    [[nodiscard]] std::vector<std::size_t> find_step(std::int64_t step) const;
    // Reads and checks one batch. Requires index < batches().size().
    // Errors: checksum_mismatch and bad_record (name the file and the offset; other batches can be
    // read), not_found (its file was removed), closed (it was replaced), host_memory, system (the
    // disk failed).
    [[nodiscard]] Result<RecordedBatch> read(std::size_t index) const;
    // Looks for batches and acknowledgements that were added since. The indices of known batches
    // stay as they are. Errc::closed: its newest file was removed or replaced.
    Result<void> refresh();
    // The parts that cannot be read, for people: a file that was cut short, damaged bytes. Empty if
    // there are none. An incomplete batch at the end of a file that is being written is not one.
    [[nodiscard]] std::string problem() const;

  private:
    struct ROLLRING_LOCAL Impl;
    explicit Recording(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
