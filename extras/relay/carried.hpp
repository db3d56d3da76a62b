#pragma once
// What has been carried of a source ring, in memory that outlives the process (a mapped file): the
// end of each of its lanes, and what was sent since that was written down, by where it lies in the
// ring that it was carried into.
//
// A record is written down after it was put into the lane and before it is visible there. So a
// successor, which learns where the lane ends, knows what was sent: each record once.
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

    // So many bytes, zeros at first, which outlive this. What they say of other rings is dropped.
    Carried(std::span<std::byte> memory, std::uint64_t source, std::uint64_t destination,
            std::uint32_t lanes);

    // First: what was written down below `end` of the destination's lane was sent. The places that
    // are still to be had. In another lane than a predecessor's nothing is known of what it sent
    // last, which comes again: a stash drops what it has.
    std::vector<Places::Place> recover(std::uint32_t lane, std::uint64_t end);
    // The ring that all of it goes into.
    [[nodiscard]] std::uint64_t destination() const;
    [[nodiscard]] Places& places() { return places_; }
    [[nodiscard]] bool has(std::uint32_t lane, std::uint64_t position) const;
    [[nodiscard]] std::uint32_t lanes() const { return static_cast<std::uint32_t>(ends_.size()); }
    [[nodiscard]] bool is_full() const;
    // The record at `position` of a source's lane lies at `to`. Not while it is full.
    void note(std::uint32_t lane, std::uint64_t position, std::uint64_t to);
    // All that was noted is visible.
    void settle();

  private:
    struct Page;
    void take_over(std::uint64_t end);

    Page* page_;
    Places places_;
    std::vector<std::uint64_t> ends_;  // what was noted included
};

}  // namespace rollring::relay
