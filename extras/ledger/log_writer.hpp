#pragma once
// Appends entries to a ledger's segments. The caller fills a chunk in memory, and a thread takes it
// to the disk: while the disk works on one chunk, the next one collects the entries that come, so
// that all of these share one wait for the disk (group commit).
//
// A failed write or sync is final: the thread ends, the directory gets a file FAILED, and nothing
// is durable from then on. After a failed fdatasync the kernel may have dropped the pages and
// forgotten the error, so that no later call could tell whether the bytes are there. A disk without
// space only delays it: the space of a segment is reserved when the segment is made, and that is
// tried again.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "chunk.hpp"
#include "disk.hpp"
#include "log_plan.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "segment_index.hpp"

namespace rollring::ledger {

class LogWriter {
  public:
    // Called by its thread, in the order of the marks.
    using Show = std::function<void(const Mark&)>;

    // `before`: the segments that are there, by number.
    LogWriter(LogPlan plan, std::deque<SegmentSize> before, std::uint64_t next_segment, Show show);
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;
    ~LogWriter();  // writes the rest, unless the disk refuses
    [[nodiscard]] Result<void> start();

    // Adds an entry; fills in its lengths and checksums. The thread does not begin with it before
    // hand_over().
    Place append(EntryHeader header, std::span<const std::span<const std::byte>> payload);
    void mark(const Mark& mark);
    void remove_below(std::uint64_t segment);
    // All that was added may go to the disk. Returns its ticket.
    std::uint64_t hand_over();
    // Of the last entry or mark.
    [[nodiscard]] std::uint64_t last_ticket() const;

    // Whether it has room for records, on the disk and in memory.
    [[nodiscard]] bool takes() const;
    // The same for records most of which it has. Others may come between them, so that the files
    // may grow a quarter beyond the bound.
    [[nodiscard]] bool takes_known() const;
    void wait(Deadline deadline);
    // Until the disk has everything up to this ticket. Errors: ledger_failed, timed_out.
    [[nodiscard]] Result<void> wait_for(std::uint64_t ticket, Deadline deadline);
    // Whether the disk has everything up to this ticket.
    [[nodiscard]] bool has(std::uint64_t ticket) const;

    [[nodiscard]] std::uint64_t bytes() const;            // of all segments
    [[nodiscard]] std::uint64_t current_segment() const;  // to which entries are added
    [[nodiscard]] bool has_no_space() const;
    // Whether a segment with that many bytes of kept records is to be emptied, to make room.
    [[nodiscard]] bool should_empty(std::uint64_t kept_bytes) const;
    [[nodiscard]] std::string problem() const;
    [[nodiscard]] std::string waits_for() const;

  private:
    Chunk& begin_segment(std::uint64_t bytes);
    void close(Chunk& chunk);
    Chunk& open_chunk(std::uint64_t bytes);
    void take_spare(Chunk& chunk);
    [[nodiscard]] bool has_work();
    [[nodiscard]] std::uint64_t queued_bytes() const;
    [[nodiscard]] bool full() const;
    std::uint64_t put(Chunk& chunk, EntryHeader header,
                      std::span<const std::span<const std::byte>> payload);
    void close_index(Chunk& next);
    void write_last_index();
    void run();
    [[nodiscard]] int commit(const Chunk& chunk);
    [[nodiscard]] int make_segment(const Chunk& chunk);
    [[nodiscard]] int remove_old(std::uint64_t below);
    void finish(Chunk chunk);
    void fail(int error);

    const LogPlan plan_;
    const Show show_;
    std::thread thread_;
    IndexMaker index_;  // of the current segment; the caller's alone

    // Of the thread alone.
    Fd file_;
    std::uint64_t file_segment_ = 0;
    const char* did_ = "";  // the last thing that it did, for the error
    bool retry_ = false;    // whether that may be done again

    mutable std::mutex guard_;
    std::condition_variable work_;
    std::condition_variable done_;
    std::deque<Chunk> queue_;  // the last one is open to further entries
    std::vector<BlockBuffer> spare_;
    std::uint64_t spare_bytes_ = 0;
    std::deque<SegmentSize> segments_;
    std::uint64_t file_bytes_ = 0;  // of all of them
    std::uint64_t next_segment_;
    std::uint64_t segment_id_ = 0;     // file_id of the current segment
    std::uint64_t segment_end_ = 0;    // where the next chunk of it begins
    std::uint64_t writing_bytes_ = 0;  // of the chunk that the thread has
    std::uint64_t next_ticket_ = 1;
    bool begun_ = false;         // a segment, by this writer
    bool handed_ = false;        // there is something to do
    bool filling_ = false;       // the caller copies into the last chunk, without the lock
    bool wanted_ = false;        // the thread waits for that chunk
    std::uint64_t durable_ = 0;  // the last ticket that the disk has
    bool no_space_ = false;
    bool ends_ = false;
    std::string problem_;
};

}  // namespace rollring::ledger
