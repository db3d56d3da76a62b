#pragma once
// The log of records carried from a source ring, in memory that outlives the process (a mapped
// file). It has, for each lane of the source, the end of the records sent; and the records sent
// since that end was stored, by their positions in the destination's lane.
//
// A record is logged after it was put into the lane and before it is visible there. So a successor
// can tell from the end of the lane which logged records were sent, and sends each record once.
//
// The same memory has the places that were taken for groups (places.hpp).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "places.hpp"

namespace rollring::relay {

class Carried {
  public:
    [[nodiscard]] static std::size_t bytes(std::uint32_t lanes);

    // `memory`: zeros at first; it must outlive this object. A log of other rings is dropped.
    Carried(std::span<std::byte> memory, std::uint64_t source, std::uint64_t destination,
            std::uint32_t lanes);

    // Call it first: records logged below `end` of the destination's lane were sent. Returns the
    // places that are still taken. If the lane is not the predecessor's, the predecessor's last
    // records are unknown and are sent again: a stash drops duplicates.
    std::vector<Places::Place> recover(std::uint32_t lane, std::uint64_t end);
    // The ring into which all records go.
    [[nodiscard]] std::uint64_t destination() const;
    [[nodiscard]] Places& places() { return places_; }
    [[nodiscard]] bool has(std::uint32_t lane, std::uint64_t position) const;
    [[nodiscard]] std::uint32_t lanes() const { return static_cast<std::uint32_t>(ends_.size()); }
    [[nodiscard]] bool is_full() const;
    // Logs that the record at `position` of a source's lane was put at `to`. Requires that the log
    // is not full.
    void note(std::uint32_t lane, std::uint64_t position, std::uint64_t to);
    // Every logged record is visible.
    void settle();

  private:
    struct Page;
    void take_over(std::uint64_t end);

    Page* page_;
    Places places_;
    std::vector<std::uint64_t> ends_;  // logged records included
};

}  // namespace rollring::relay
