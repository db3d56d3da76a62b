#pragma once
// The state that the others find when a process has died: an image of the ring as a ring of its
// own, taken over by a new consumer and by new producers.

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "support/load.hpp"

namespace rollring::test {

// A record by its stream and number.
using Id = std::pair<std::uint64_t, std::uint64_t>;

// Records so small that a lane of a few KiB holds several.
class SmallLoad {
  public:
    static std::uint32_t tokens(Id id) {
        return static_cast<std::uint32_t>(mix(mix(id.first) ^ id.second) % 40);
    }
    // Points into this object; lives until the next call. `group`: two records make one.
    Draft draft(Id id, bool group = false);
    static Id id_of(const TrajectoryView& view) {
        return {view.meta().visit, view.meta().repetition_id.value_or(0)};
    }
    static void verify(const TrajectoryView& view);

  private:
    std::vector<std::int32_t> values_;
    std::string instance_;
};

// The invariants after a death at any instruction.
struct Promise {
    std::set<Id> held;            // committed and not released: they come
    std::set<Id> delivered;       // of those: they are marked as redelivered
    std::set<Id> leaving;         // of those: all of them come, or none
    std::vector<Id> arriving;     // being committed: some may come, in this order
    std::int64_t step = -1;       // of the last acknowledgement
    std::int64_t next_step = -1;  // with which `leaving` leaves; -1: with none
    bool in_order = true;         // per stream; not where records may have moved to the spill
};

struct Found {
    std::uint64_t records = 0;
    std::size_t arrived = 0;
    bool gone = false;  // those that were leaving
    bool operator==(const Found&) const = default;
};

// A ring whose memory is to be written over: all of it reserved, and mapped.
Segment attach_whole(const std::string& ring);
Mapping map_writable(const Segment& segment);

class Survivor {
  public:
    explicit Survivor(const RingOptions& options);

    // Takes over from the dead and compares the ring with the promise; then every lane takes a
    // producer and delivers. `in_order`: gives the records back oldest first; else the head moves
    // only at the end.
    Found recover(std::span<const std::byte> image, const Promise& promise, bool in_order);
    [[nodiscard]] std::uint64_t recoveries() const { return recoveries_; }

  private:
    std::vector<Record> read_all(Consumer& consumer, const Promise& promise, Found& found) const;
    void retire_all(Consumer& consumer);
    void require_no_bits() const;
    void use_all_lanes(Consumer& consumer);

    RingOptions options_;
    ScratchRing ring_;
    Segment segment_;
    Mapping memory_;
    SmallLoad load_;
    std::uint64_t recoveries_ = 0;
};

}  // namespace rollring::test
