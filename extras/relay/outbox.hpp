#pragma once
// The records that a forwarder takes out of a ring of its node, as parcels. A record stays in its
// lane until the other node has it; a forwarder that dies leaves it to its successor.
//
// An outbox has the ring's only Consumer, with the same thread and process safety.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parcel.hpp"
#include "rollring/consumer.hpp"
#include "rollring/time.hpp"

namespace rollring::relay {

// Spans of memory and, for each record, its offset in them.
struct Parcel {
    std::vector<ParcelEntry> entries;
    std::vector<std::span<const std::byte>> spans;
    std::uint64_t bytes = 0;  // of the records

    void add(const Record& record);
};

class Outbox {
  public:
    // Requires that the ring exists. `places`: the number of groups that its producers may have
    // open at once from the start.
    static Result<Outbox> open(std::string_view ring, std::optional<std::uint64_t> places);

    // Waits for a record, then collects until the parcel has `bytes`, or until `linger_ns` have
    // passed since the first record and no other one is there. Spans are valid until release() of
    // their records, and end with the outbox.
    Poll collect(Parcel& parcel, std::uint64_t bytes, std::int64_t linger_ns, Deadline deadline);
    // Releases that many of the collected records, the oldest first. Their spans are invalid then.
    void release(std::uint64_t records);

    // Bounds the open groups of producers. A group counts until its first record is released.
    void bound_groups(std::uint64_t places);
    [[nodiscard]] std::uint64_t announced_groups() const;
    // (lane, epoch) of producers that ended since the previous call.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> gone();
    [[nodiscard]] std::uint32_t producers() const;
    [[nodiscard]] std::string problem() const;  // after Poll::closed
    // Ends the current wait, or the next one; any thread may call it.
    void interrupt();

  private:
    explicit Outbox(Consumer consumer) : consumer_(std::move(consumer)) {}

    Consumer consumer_;
    std::deque<RecordRef> held_;
};

}  // namespace rollring::relay
