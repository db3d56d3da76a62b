#pragma once
// The trainer side: reads all lanes of a ring, in place, and gives records back in any order.
//
// One consumer per ring, one thread at a time. If it dies, its successor gets every record that was
// not released, and none that was. In a forked child it is inert: it writes nothing, and calls that
// return an error return Errc::forked.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

struct ConsumerOptions {
    std::chrono::nanoseconds attach_timeout =
        std::chrono::seconds(10);  // for the ring to appear and the seat to be free
    std::chrono::nanoseconds spin =
        std::chrono::microseconds(20);   // before sleeping; 0 on a single CPU
    Purpose purpose = Purpose::records;  // of the ring; open() refuses one of another purpose
};

enum class [[nodiscard]] Poll {
    record,
    empty,      // poll(): nothing now
    timed_out,  // wait(): nothing by the deadline, or interrupt()
    closed,     // the process is a forked child; or, from wait(), the ring was removed and its
                // producers are gone: see problem()
};
ROLLRING_API std::string_view name(Poll answer);

struct Record {
    RecordRef ref{};
    TrajectoryView view;               // valid until the record is released
    std::span<const std::byte> bytes;  // under the view, header included; valid as long as it is
    std::uint32_t producer_lane = 0;   // ref.lane, or where it was before it was evacuated
    std::uint32_t producer_epoch = 0;  // with producer_lane and sequence: its identity in this ring
    std::uint64_t sequence = 0;
    std::int64_t committed_ns = 0;  // CLOCK_MONOTONIC
    bool redelivered = false;       // an earlier consumer has seen it and died
};

struct Event {
    enum class Kind {
        producer_joined,
        producer_closed,
        producer_died,
        quarantined,  // a damaged lane: silent until its producer is gone, then given up
        torn,         // a record refused by validation or checksum, and dropped. With an empty name
                      // and epoch 0: the record, or everything unreleased from there on, was left
                      // by an earlier producer of the lane
        lane_failed,  // a producer's lane could not be mapped here; tried again
        stalled,      // of a stash: every producer waits, and nothing can be done; `detail` says
                      // why, and which option helps. Reported after a second, then every ten
        overflow_failed,  // of a stash: the ring's overflow file cannot be used; `detail` says why
        // Of a stash, too, about records and groups; `detail` says all of it:
        dropped,        // records left without being shipped: `records` of them, for one reason
        size_conflict,  // members whose group_size differs from that of the group's first member
        partial,        // a group ships in part, because its deadline has passed; `records`: how
                        // many such groups there were so far
        overdue,        // `records` groups are older than the deadline, or than ten minutes where
                        // there is none, and are kept
    };
    Kind kind;
    std::uint32_t lane;
    std::uint32_t epoch;
    std::string producer;
    std::uint64_t records;  // delivered from this producer; its last sequence is one less
    std::string detail;
};
ROLLRING_API std::string_view name(Event::Kind kind);

struct ConsumerStats {
    std::uint64_t records;  // delivered by this consumer, as are all below
    std::uint64_t tokens;
    std::uint64_t bytes;
    std::uint64_t released;
    std::uint64_t lost;        // gaps in a producer's sequence
    std::uint64_t duplicates;  // a sequence seen before
    std::uint64_t torn;        // refused by validation or checksum
    std::uint64_t redelivered;
    std::uint64_t producers_joined;
    std::uint64_t producers_closed;
    std::uint64_t producers_died;
    std::uint64_t quarantines;
    std::uint64_t dropped_bytes;
    std::uint64_t events_missed;  // next_event() was not called in time
    std::uint64_t strays;         // calls of release() for records that were not held: ignored
};

class ROLLRING_API Consumer {
  public:
    // Waits for the ring and the seat, then recovers the records that a predecessor left.
    static Result<Consumer> open(std::string_view ring, const ConsumerOptions& options = {});

    Consumer(Consumer&&) noexcept;
    Consumer& operator=(Consumer&&) noexcept;
    ~Consumer();

    // Reads the next record of any lane. Never waits, and makes system calls only when idle.
    // Lanes take turns by bytes; within a lane the producer's order holds.
    Poll poll(Record& record);
    // The same, sleeping until the deadline if necessary.
    Poll wait(Record& record, Deadline deadline);
    // Makes the current wait, or else the next one, return timed_out at once. Any thread may call
    // this while another one uses the consumer. For a clean end, and for threads that take turns.
    void interrupt();

    // Looks at a delivered, not yet released record once more. False if it is not held (any more),
    // or its bytes have been damaged since; the view is then empty.
    bool view(const RecordRef& record, TrajectoryView& view) const;

    // Gives a record's memory back, in any order. False, and nothing happens, if the record is not
    // held: it was released before, or never delivered.
    bool release(const RecordRef& record);

    // Releases all of them, or none if this process is killed meanwhile, and stores `step` with
    // them. -1: no step; otherwise steps never decrease, but may repeat.
    // Errors, after which nothing has changed: journal_full (more than journal_records()),
    // not_leased (names the record that is not held, or is there twice), forked, invalid_argument
    // (`step` is lower than the last one).
    Result<void> release_all(std::span<const RecordRef> records, std::int64_t step);
    [[nodiscard]] std::uint64_t journal_records() const;
    // The last step of release_all(), also of predecessors; -1: none yet.
    [[nodiscard]] std::int64_t last_acked_step() const;

    // Events of producers, oldest first. False if there are none.
    bool next_event(Event& event);
    // Why poll() or wait() returns `closed`, for people; empty if it does not.
    [[nodiscard]] std::string problem() const;

    // Producers that hold a lane which is not drained yet.
    [[nodiscard]] std::uint32_t producers_active() const;
    [[nodiscard]] const Schema& schema() const;
    [[nodiscard]] ConsumerStats stats() const;
    // Version last committed on the weight channel; -1: none.
    [[nodiscard]] std::int64_t policy_version() const;

  private:
    friend class RelayConsumer;
    struct ROLLRING_LOCAL Impl;
    explicit Consumer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
