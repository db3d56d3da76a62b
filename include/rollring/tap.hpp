#pragma once
// A tap reads the records of a ring that other processes fill and empty, and takes no part: no
// lane, no seat, no lease, not one byte written. Neither producers nor the consumer can notice it,
// except by the CPU that it uses. For viewers, recorders and samples in a log.
//
//   auto tap = rollring::Tap::attach("run42");
//   if (!tap) ...
//   rollring::TapRecord record;
//   while (tap->poll(record) == rollring::TapPoll::record) {   // ten times a second
//       std::printf("%u tokens\n", record.view.n_tokens());
//   }
//
// A tap sees what is in memory: from the position up to which the consumer has released a lane, to
// the position up to which its producer has committed. A record that is released between two rounds
// is missed, and counted. A record that a stash moves to the ring's spill is seen once, there or
// in its lane.
//
// Each record is copied first. Then the tap reads the release position of its lane again: a
// producer writes over a record only after it has read a release position above that record, so a
// position that is still at or below it, read after the copy, proves the copy. Otherwise the record
// counts as `gone` and is not returned. So no record is ever shown with bytes of another one.
//
// All lengths and positions are checked before use, whatever the ring's memory contains. The ring
// may be removed, and all its processes killed: the tap still reads the remaining records.
//
// One thread at a time. In a forked child the tap is a tap of its own.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

struct TapOptions {
    // For the ring to appear.
    std::chrono::nanoseconds attach_timeout = std::chrono::seconds(10);
    // Bytes that a round copies before it ends, except for its last record: bounds the CPU and the
    // memory bandwidth of a tap on a fast ring. At least 1.
    std::uint64_t round_bytes = std::uint64_t{1} << 20;
};

enum class [[nodiscard]] TapPoll {
    record,
    empty,    // the round is over; the next call begins another one
    removed,  // the ring was removed, and all its records were read; a ring that was made under the
              // same name since is another one: attach again
};
ROLLRING_API std::string_view name(TapPoll answer);

struct TapRecord {
    TrajectoryView view;               // of the tap's own copy, valid until its next poll()
    std::span<const std::byte> bytes;  // under the view, header included; valid as long as it is
    // With the ring's id, the identity of the record: lane, epoch and sequence of its producer.
    std::uint32_t lane = 0;
    std::uint32_t epoch = 0;
    std::uint64_t sequence = 0;
    std::int64_t committed_ns = 0;  // CLOCK_MONOTONIC
    // The name of its producer, valid until the next poll(); empty if another one has the lane by
    // now.
    std::string_view producer;
};

struct TapStats {
    std::uint64_t records;  // returned by poll(), as are the next two
    std::uint64_t tokens;
    std::uint64_t bytes;
    // Records that were committed since the tap came, and that it never returned, as far as later
    // records of the same producer show it; `gone` ones included.
    std::uint64_t missed;
    std::uint64_t gone;        // released while they were copied
    std::uint64_t unreadable;  // damaged frames and records, and those in a lost overflow file
    std::uint64_t rounds;
};

class ROLLRING_API Tap {
  public:
    // Errc::not_found after the timeout; invalid_argument: round_bytes is 0, or the ring holds the
    // values of a store.
    static Result<Tap> attach(std::string_view ring, const TapOptions& options = {});

    Tap(Tap&&) noexcept;
    Tap& operator=(Tap&&) noexcept;
    ~Tap();

    // The next record that the tap has not returned before. A round ends at the last
    // record that was committed before it began. Never waits.
    TapPoll poll(TapRecord& record);

    [[nodiscard]] const Schema& schema() const;
    [[nodiscard]] std::uint64_t ring_id() const;
    [[nodiscard]] TapStats stats() const;

  private:
    struct ROLLRING_LOCAL Impl;
    explicit Tap(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
